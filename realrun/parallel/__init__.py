"""Each kind of parallelism in a file of its own, the naive form first: the pieces that an executor of whole plans puts together."""
