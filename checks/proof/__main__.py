"""``python -m checks.proof``."""

from .cli import main

main()
