"""What the ops of one unit do to the memory of a rank: of the embedding, a layer, the head or the loss."""
