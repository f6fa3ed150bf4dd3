"""The one error that a reader or converter raises for bad input."""


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message names the file or entry, and what to do."""
