"""The model that is trained: a byte-level GPT in pipeline stages, its data, and the same training
in one process."""
