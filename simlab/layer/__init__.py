"""What a layer consists of, and what follows from that."""
