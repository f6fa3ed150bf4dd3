"""Compile MaxText's train step for a TPU topology, in MaxText's own Python."""
