"""``python -m codemods`` is ``muon-migrate``."""

from codemods.cli import main

main()
