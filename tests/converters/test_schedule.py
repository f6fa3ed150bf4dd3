"""The learning rate of MaxText's keys against Megatron's, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from converters.maxtext.schedule import fraction, schedule_config


def megatron_rate(a: dict[str, Any], step: int) -> float:
    """Megatron's scheduler at ``step`` finished steps."""
    top, least = a["lr"], a["min_lr"]
    warmup = a.get("lr_warmup_iters", 0)
    if warmup and step <= warmup:
        return float(top * step / warmup)
    if a["lr_decay_style"] == "constant":
        return float(top)
    decay = a["lr_decay_iters"]
    if step > decay:
        return float(least)
    share = (step - warmup) / (decay - warmup)
    if a["lr_decay_style"] == "linear":
        left = 1 - share
    elif a["lr_decay_style"] == "cosine":
        left = 0.5 * (math.cos(math.pi * share) + 1)
    else:
        start = decay - a["lr_wsd_decay_iters"]
        part = max(0.0, (step - start) / a["lr_wsd_decay_iters"])
        linear = a["lr_wsd_decay_style"] == "linear"
        left = 1 - part if linear else 0.5 * (math.cos(math.pi * part) + 1)
    return float(least + left * (top - least))


def maxtext_rate(c: dict[str, Any], step: int) -> float:
    """MaxText's schedule at count ``step``, as its documentation of the keys has it."""
    length, top = c["learning_rate_schedule_steps"], c["learning_rate"]
    end = top * c["learning_rate_final_fraction"]
    warmup = int(length * c["warmup_steps_fraction"])
    if step < warmup:
        return float(top * step / warmup)
    if step >= length:
        return 0.0
    if c["lr_schedule_type"] == "cosine":
        start, steps, kind = warmup, length - warmup, "cosine"
    else:
        steps, kind = int(length * c["wsd_decay_steps_fraction"]), c.get("wsd_decay_style")
        start = length - steps
    if step < start:
        return float(top)
    share = (step - start) / (steps - 1)
    left = 1 - share if kind == "linear" else 0.5 * (math.cos(math.pi * share) + 1)
    return float(end + left * (top - end))


BASE = {"lr": 1e-2, "min_lr": 1e-3, "train_iters": 100, "lr_decay_iters": 100}


@pytest.mark.parametrize("warmup", [0, 1, 7, 33])
@pytest.mark.parametrize(
    "style",
    [
        {"lr_decay_style": "cosine"},
        {"lr_decay_style": "linear"},
        {"lr_decay_style": "constant", "min_lr": 1e-2},
        {"lr_decay_style": "WSD", "lr_wsd_decay_style": "linear", "lr_wsd_decay_iters": 20},
        {"lr_decay_style": "WSD", "lr_wsd_decay_style": "cosine", "lr_wsd_decay_iters": 13},
    ],
    ids=lambda style: "-".join(map(str, style.values())),
)
def test_rates_agree_at_every_step(style: dict[str, Any], warmup: int) -> None:
    arguments = BASE | style | {"lr_warmup_iters": warmup}
    config, notes = schedule_config(arguments)
    assert notes == ()
    assert config["steps"] == 100
    for step in range(100):
        expected = megatron_rate(arguments, step)
        assert math.isclose(maxtext_rate(config, step), expected, rel_tol=1e-9, abs_tol=1e-15), step


def test_a_run_past_its_decay_is_told() -> None:
    arguments = BASE | {"lr_decay_style": "cosine", "lr_decay_iters": 50}
    config, notes = schedule_config(arguments)
    assert config["learning_rate_schedule_steps"] == 51
    assert "MaxText's rate is 0 from step 51 on, Megatron's stays 0.001" in notes[0]


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ({"lr_decay_style": "inverse-square-root"}, "no such decay"),
        (
            {
                "lr_decay_style": "WSD",
                "lr_wsd_decay_style": "exponential",
                "lr_wsd_decay_iters": 9,
            },
            "WSD with exponential",
        ),
        ({"lr_decay_style": "cosine", "lr_warmup_init": 1e-5}, "warms up from 0"),
        ({"lr_decay_style": "cosine", "train_iters": None, "lr_decay_iters": None}, "by samples"),
        ({"lr": None}, "no lr"),
    ],
)
def test_what_has_no_key_is_told(arguments: dict[str, Any], note: str) -> None:
    _, notes = schedule_config(BASE | arguments)
    assert any(note in line for line in notes)


def test_a_share_of_steps_is_whole() -> None:
    for whole in range(1, 400):
        for part in range(whole + 1):
            share = fraction(part, whole)
            assert int(whole * share) == part
            assert share <= 1.0
