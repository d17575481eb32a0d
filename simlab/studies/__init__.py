"""It answers questions with the other rooms: surveys, puzzles, partitions, what-ifs, published
runs."""
