"""The command line: `python -m realrun`."""
