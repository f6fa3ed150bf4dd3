"""The two sides of a rung: the fork on MaxText-shaped leaves, and what it must equal."""
