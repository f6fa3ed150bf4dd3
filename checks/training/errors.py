"""The one error that this room raises for bad input."""

from __future__ import annotations


class RunError(Exception):
    """A recorded run or a MaxText cannot be used; the message names the file, the value and what
    to do."""
