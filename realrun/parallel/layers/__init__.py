"""How a layer is cut over ranks: its matrices, its tokens between them, its sequence, its experts."""
