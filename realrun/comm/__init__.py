"""Messages between ranks, groups and their ledger of bytes, the mesh of ranks, collectives as
rounds, and one clock for all ranks."""
