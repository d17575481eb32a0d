"""Where the ranks come from: local processes or torchrun."""
