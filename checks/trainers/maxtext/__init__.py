"""Train the MaxText on the module search path, in its own Python."""
