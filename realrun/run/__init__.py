"""Running a job on every rank."""
