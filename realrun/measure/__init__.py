"""What this machine takes for kernels, ops and messages, each measured apart from any run."""
