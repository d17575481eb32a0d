"""What lessons execute and replay."""
