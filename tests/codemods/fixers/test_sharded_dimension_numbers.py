"""Shardings of 0.2.5 on the fork's dimension numbers."""

from __future__ import annotations

import pytest

from codemods.fixers.sharded_dimension_numbers import fixer
from tests.codemods.fixers.tools import before, check_noop, check_refused, check_transformed, swap

TEXT = before("release-0.2.5", "sharded_muon_utils")
CALL = "muon_utils.transform_logic(path_strings"


def test_everything_but_the_sharding_survives() -> None:
    result = check_transformed(fixer, TEXT)
    assert "return dim_num._replace(sharding=sharding)" in result
    assert "include_routers=include_routers, rules=rules" in result
    assert "smdn" not in result
    assert "Sharded" not in result


def test_routers_that_are_passed_stay() -> None:
    text = swap(TEXT, CALL, CALL.replace("(path", "(include_routers=False, path=path"))
    assert "include_routers=False" in check_transformed(fixer, text)


def test_migrated_text_stays() -> None:
    check_noop(fixer, check_transformed(fixer, TEXT))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param(
            "          output_axis=dim_num.output_axis,\n",
            "          output_axis=(-1,),\n",
            "return smdn(",
            "unexpected arguments",
            id="axes of its own",
        ),
        pytest.param(
            "    return None\n",
            "    return smdn\n",
            "return smdn",
            "otherwise than to be built",
            id="type passed on",
        ),
        pytest.param(
            "from flax import nnx\n",
            "from flax import nnx\n\n\ndef f(p):\n  return muon_utils.transform_logic(p)\n\n\n",
            "muon_utils.transform_logic(p)",
            "is called outside",
            id="unknown caller",
        ),
        pytest.param(
            "import ShardedMuonDimensionNumbers as smdn",
            "import ShardedMuonDimensionNumbers as smdn, muon",
            "import Sharded",
            "expected only",
            id="another name",
        ),
    ],
)
def test_refused(old: str, new: str, line: str | None, message: str) -> None:
    check_refused(fixer, swap(TEXT, old, new), line, message)
