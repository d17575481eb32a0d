"""The command line: `python -m simlab`."""
