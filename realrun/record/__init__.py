"""What a rank did: recordings, and the measured traces made of them."""
