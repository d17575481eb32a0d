"""Published runs: what their rows say, what is predicted of them, and how far off that is."""
