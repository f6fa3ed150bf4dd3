"""Numbers and a common state that nothing can be continued from, with every checksum right."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

from tests.converters.hostile import edit_tensor, rebuild, saved

from .case import COMMON, FIRST, HEAD, MOMENTUM, PROJ, SECOND, Case, Damage


def _put(key: str, value: float, at: int = 17) -> Damage:
    """Overwrite one element of every piece of a tensor."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[at] = value
        return tensor

    return lambda folder: rebuild(folder, {key: edit_tensor(change)})


def _as(key: str, change: Callable[[torch.Tensor], Any]) -> Damage:
    return lambda folder: rebuild(folder, {key: edit_tensor(change)})


def _common(**changes: Any) -> Damage:
    """A small common state; ``None`` leaves an entry out."""
    state = {"args": Namespace(num_layers=2), "iteration": 20, "optimizer": {}, **changes}
    state = {key: value for key, value in state.items() if value is not None}
    return _common_is([state])


def _common_is(value: Any) -> Damage:
    return lambda folder: rebuild(folder, {COMMON: lambda _data: saved(value)})


_NUMBERS = [
    Case(
        f"{value} in {key} of {sample}",
        _put(key, value),
        rf"{name}: {value} at index \[0, 17\].*--iteration",
        sample,
    )
    for sample, key, name in (
        ("dense_td", HEAD, r"output_layer\.weight \(weight\)"),
        ("dense_td", MOMENTUM, r"decoder\.layers\.0\..*linear_proj\.weight \(momentum_buffer\)"),
        ("dense_td", FIRST, r"output_layer\.weight \(exp_avg\)"),
        ("dense_td", SECOND, r"output_layer\.weight \(exp_avg_sq\)"),
        ("bf16_td", HEAD, r"output_layer\.weight \(weight\)"),
        ("bf16_td", f"optimizer.state.fp32_param.{HEAD}", r"output_layer\.weight \(fp32_param\)"),
    )
    for value in (float("nan"), float("inf"), float("-inf"))
]
_OTHER_VALUES = [
    Case("a negative square", _put(SECOND, -0.5), r"exp_avg_sq\): -0\.5 at index \[0, 17\]"),
    Case("a transposed piece", _as(PROJ, lambda t: t.reshape(1, 64, 16)), f"{PROJ}.*64, 16"),
    Case("a flat piece", _as(PROJ, lambda t: t.reshape(-1)), rf"{PROJ}.*\(1024,\)"),
    Case("a piece of another dtype", _as(HEAD, lambda t: t.double()), f"{HEAD}.*float64"),
    Case("a piece of half a dtype", _as(HEAD, lambda t: t.half()), f"{HEAD}: .*cannot hold"),
    Case("a piece of integers", _as(HEAD, lambda t: t.view(torch.int32)), f"{HEAD}.*int32"),
    Case("a list of tensors", _as(HEAD, lambda t: [t]), f"{HEAD}.*no tensor"),
    Case("a number", _as(HEAD, lambda t: 1.0), f"{HEAD}.*(no tensor|cannot hold)"),
]
_STATES = [
    Case("no arguments", _common(args=None), "the common state has no 'args'"),
    Case("empty arguments", _common(args=Namespace()), "the common state has no 'args'"),
    Case("arguments of a dict", _common(args={"num_layers": 2}), "no 'args'"),
    Case("no iteration", _common(iteration=None), "'iteration' is None"),
    Case("a fractional iteration", _common(iteration=20.5), r"'iteration' is 20\.5"),
    Case("another iteration", _common(iteration=19), "iter_0000020: .*iteration 19"),
    Case("more layers", _common(args=Namespace(num_layers=3)), "num_layers=3.*layers.2 is not"),
    Case("fewer layers", _common(args=Namespace(num_layers=1)), "num_layers=1.*layers.1 is saved"),
    Case("a common state of a list", _common_is([1, 2]), "the common state is no dictionary"),
    Case("a common state of nothing", _common_is(None), "the common state is no dictionary"),
    Case("a step that is no number", _common(optimizer={"param_groups": [{"step": "x"}]}), "step"),
]

CASES = (*_NUMBERS, *_OTHER_VALUES, *_STATES)
