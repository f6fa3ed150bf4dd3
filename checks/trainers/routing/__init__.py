"""How a MaxText would route every parameter, asked in its own Python."""
