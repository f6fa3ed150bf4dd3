"""The JSON document: its form is written down, kept, and checked by a validator."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from checks.report.document import as_json
from checks.report.schema import FORM, schema
from checks.result import Curve, Report

from . import samples

# Written once; another document here means another form, hence another version of it.
GOLDEN = Path(__file__).parents[2] / "data" / "report" / "document.json"


def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("name", ["passed", "failed", "small"])
def test_documents_have_the_form_of_the_schema(name: str) -> None:
    document = as_json(getattr(samples, name)())
    validator().validate(document)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_an_empty_report_has_that_form_too() -> None:
    document = as_json(Report((), {}))
    validator().validate(document)
    assert not document["passed"]


def test_the_form_has_not_changed() -> None:
    golden = json.loads(GOLDEN.read_text())
    document = as_json(samples.small())
    # What the tolerances say of a limit is no part of the form.
    for one in (golden, document):
        for figure in one["rungs"][0]["figures"]:
            assert figure.pop("reason")
    assert document == golden
    assert document["form"] == FORM == schema()["properties"]["form"]["const"]


# Names below which anything goes.
FREE = ("environment", "spec", "details")


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every object of the document that has a fixed set of names."""
    if isinstance(value, list):
        return [place for i, item in enumerate(value) for place in paths(item, (*at, i))]
    if not isinstance(value, dict):
        return []
    inner = ((key, item) for key, item in value.items() if key not in FREE)
    return [at, *(place for key, item in inner for place in paths(item, (*at, key)))]


def test_the_schema_notices_every_name_too_many_or_missing() -> None:
    document, check = as_json(samples.small()), validator()
    places = paths(document)
    assert len(places) > 8
    for place in places:
        for name in [*_at(document, place), None]:
            damaged = copy.deepcopy(document)
            target = _at(damaged, place)
            target.pop(name) if name is not None else target.update(unknown=1)
            assert not check.is_valid(damaged), (place, name)


def _at(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        document = document[key]
    return document


def test_figures_carry_the_reason_of_their_limit() -> None:
    figure = as_json(samples.small())["rungs"][0]["figures"][0]
    assert "Measured" in figure["reason"]
    assert (figure["value"], figure["passed"]) == (0.02, False)


def test_curves_are_summed_up() -> None:
    first, second = as_json(samples.small())["rungs"][0]["curves"]
    assert (first["max_difference"], first["worst_step"]) == (0.25, 22)
    assert first["mean_difference"] == pytest.approx(0.25 / 3)
    assert (first["max_floor"], first["mean_floor"]) == (0.25, 0.125)
    assert (second["max_difference"], second["worst_step"]) == ("NaN", 0)
    assert (second["max_floor"], second["mean_floor"]) == (None, None)


def test_sides_of_different_length_are_an_error() -> None:
    rung = samples.small().rungs[0]
    curve = Curve("short", 0, (1.0, 2.0), (1.0,), floor=(0.0, 0.0))
    with pytest.raises(ValueError, match="short: 2 losses, 1 of ours, 2 floors"):
        as_json(Report((dataclasses.replace(rung, curves=(curve,)),), {}))
    floored = Curve("floor", 0, (1.0,), (1.0,), floor=(0.0, 0.0))
    with pytest.raises(ValueError, match="floor: 1 losses, 1 of ours, 2 floors"):
        as_json(Report((dataclasses.replace(rung, curves=(floored,)),), {}))


def test_a_loss_that_nobody_wrote_down_is_no_difference() -> None:
    curve = Curve("gap", 5, (1.0, math.nan, 2.0), (1.0, 1.5, 2.5), (0.1, math.nan, 0.3))
    rung = dataclasses.replace(samples.small().rungs[0], curves=(curve,))
    (found,) = as_json(Report((rung,), {}))["rungs"][0]["curves"]
    assert (found["max_difference"], found["worst_step"]) == (0.5, 7)
    assert (found["mean_difference"], found["max_floor"], found["mean_floor"]) == (0.25, 0.3, 0.2)
    assert found["reference"] == [1.0, "NaN", 2.0]
