"""What the TPU's own compiler makes of a train step; it needs no TPU."""
