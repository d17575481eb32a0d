"""It writes traces in the formats of other viewers."""
