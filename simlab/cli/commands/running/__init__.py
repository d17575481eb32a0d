"""The commands about a training that runs: what happens over months, its machines, its traces."""
