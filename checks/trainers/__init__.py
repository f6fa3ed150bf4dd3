"""What runs inside a trainer's own Python; imports nothing of ours but its own siblings."""
