"""The commands of learners and teachers."""
