"""muon-convert as a user calls it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from converters.cli import main
from converters.orbax import runtime

runtime.start()
ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data/megatron"
DENSE, OTHER = DATA / "dense_td", DATA / "qknorm_td"


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    for part in parts:
        assert part in result.stderr
    assert "Traceback" not in result.output
