"""What people get to see of a run."""
