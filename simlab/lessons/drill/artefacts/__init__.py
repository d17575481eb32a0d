"""What is read in an interview: made by our own code, with a fault that is hidden in it."""
