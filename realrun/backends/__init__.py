"""The back-ends that execute a job: realrun's own executor, and torch's own parallelism."""
