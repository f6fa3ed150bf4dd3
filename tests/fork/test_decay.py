"""Weight decay in the arithmetic of either lineage, which float32 tells apart over many steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muon_fork import muon
from tests.fork.decaying import DECAY, RATE, ROUNDING, STYLES, decayed, exact, weights


@pytest.mark.parametrize("matrix", STYLES)
@pytest.mark.parametrize("adam", STYLES)
@pytest.mark.parametrize("rate", [RATE, lambda count: jnp.float32(RATE)], ids=["rate", "schedule"])
def test_each_branch_decays_in_its_own_style(matrix: str, adam: str, rate: Any) -> None:
    found = decayed({"decay_style": matrix, "adam_decay_style": adam}, rate)
    rounded = exact(float(np.float32(1 - RATE * DECAY)))
    plain = exact(1 - RATE * DECAY)
    drift = abs(rounded["w"] - plain["w"]).mean()
    assert drift > 100 * ROUNDING  # so that one cannot be taken for the other
    for name, style in (("w", matrix), ("v", adam)):
        expected = {"factor": rounded, "subtract": plain}[style]
        assert abs(found[name] - expected[name]).mean() < 0.2 * drift, name


@pytest.mark.parametrize("style", STYLES)
def test_masked_leaves_do_not_decay(style: str) -> None:
    styles = {"decay_style": style, "adam_decay_style": style}
    kept = {"w": False, "v": False}
    found = decayed(styles, weight_decay_mask=kept, adam_weight_decay_mask=kept)
    for name, start in weights().items():
        assert np.array_equal(found[name], start), name


@pytest.mark.parametrize("mask", [None, {"w": True, "v": False}])
def test_the_state_is_the_same_in_both_styles(mask: Any) -> None:
    states = [
        muon(
            lambda count: RATE,
            weight_decay_mask=mask,
            adam_weight_decay_mask=mask,
            decay_style=style,
            adam_decay_style=style,
        ).init(weights())
        for style in STYLES
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


@pytest.mark.parametrize("name", ["decay_style", "adam_decay_style"])
def test_another_style_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*subtract"):
        muon(RATE, **{name: "add"})


@pytest.mark.parametrize("name", ["weight_decay", "adam_weight_decay"])
def test_a_scheduled_decay_is_subtracted_only(name: str) -> None:
    style = name.replace("weight_decay", "decay_style")
    muon(RATE, **{name: lambda count: DECAY})
    with pytest.raises(ValueError, match=f"{style}='factor' takes a weight decay that is a number"):
        muon(RATE, **{name: lambda count: DECAY, style: "factor"})
