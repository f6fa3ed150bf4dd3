"""Tables of the demo."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from muon_fork.presets import preset
from muon_fork.spec import MuonSpec

Routing = Mapping[str, Mapping[str, Any]]


def losses(before: Sequence[float], after: Sequence[float], reference: str) -> Table:
    """Loss of every step, released MaxText beside the migrated one."""
    table = Table(title="Loss on the same tokens", title_justify="left")
    for name in ("step", "released (optax)", f"migrated ({reference})", "difference"):
        table.add_column(name, justify="right")
    for step, (old, new) in enumerate(zip(before, after, strict=True)):
        table.add_row(str(step), f"{old:.6f}", f"{new:.6f}", f"{new - old:+.6f}")
    return table


def continued(megatron: Sequence[float], maxtext: Sequence[float]) -> Table:
    """Loss of the steps after the checkpoint, as Megatron recorded them and as MaxText has them."""
    pairs = list(zip(megatron, maxtext, strict=True))
    worst = max(abs(new - old) for old, new in pairs)
    title = f"The run goes on; differs by at most {worst:.1e}"
    table = Table(title=title, title_justify="left")
    for name in ("step", "Megatron", "MaxText", "difference"):
        table.add_column(name, justify="right")
    for step, (old, new) in enumerate(pairs):
        if step % 5 == 0 or step == len(pairs) - 1:
            table.add_row(f"+{step}", f"{old:.7f}", f"{new:.7f}", f"{new - old:+.1e}")
    return table


def semantics(reference: str) -> Table:
    """The formulas, and every MuonSpec field in which the reference differs from the release."""
    table = Table(title="What the optimizer now computes", title_justify="left")
    table.add_column("", no_wrap=True, min_width=max(map(len, MuonSpec().__dict__)))
    for name in ("released (optax)", f"migrated ({reference})"):
        table.add_column(name)
    old, new = preset("optax"), preset(reference)
    table.add_row("momentum", _momentum(old), _momentum(new))
    table.add_row("look-ahead", _look_ahead(old), _look_ahead(new))
    table.add_row("coefficients", _coefficients(old), _coefficients(new))
    table.add_row("scale of a matrix", _scale(old), _scale(new), end_section=True)
    for name, (before, after) in old.differences(new).items():
        table.add_row(name, _value(before), _value(after))
    return table


def routing(before: Routing, after: Routing) -> Table:
    """Which optimizer trains each parameter, and the matrices that Newton-Schulz sees."""
    title = "Who trains what: AdamW, or Muon on that many matrices of that shape"
    table = Table(title=title, title_justify="left")
    for name in ("parameter", "shape", "released", "migrated"):
        table.add_column(name, overflow="fold")
    for path, row in after.items():
        shape = row["shape"]
        old, new = (_matrices(shape, rows[path]["muon"]) for rows in (before, after))
        short = path.removeprefix("decoder/").removesuffix("/kernel")
        table.add_row(short, "x".join(map(str, shape)), old, new)
    return table


def _matrices(shape: Sequence[int], muon: Mapping[str, Any] | None) -> str:
    if muon is None:
        return "AdamW"
    rows = _axes(muon["reduction_axis"], len(shape))
    columns = _axes(muon["output_axis"], len(shape))
    height = math.prod(shape[axis] for axis in rows)
    width = math.prod(shape[axis] for axis in columns)
    notes = [f"{math.prod(shape) // (height * width)} of {height}x{width}"]
    if muon.get("component_splits"):
        notes.append("split " + "+".join(map(str, muon["component_splits"])))
    if muon.get("join"):
        notes.append("joined")
    if muon.get("update_scale", 1.0) != 1.0:
        notes.append(f"stored x {muon['update_scale']:.3g}")
    return "\n".join(notes)


def _axes(axes: Sequence[int] | int, rank: int) -> list[int]:
    listed = [axes] if isinstance(axes, int) else axes
    return [axis % rank for axis in listed]


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _momentum(spec: MuonSpec) -> str:
    fresh = "g" if spec.nesterov_style == "sgd" else f"{1 - spec.beta:g} g"
    return f"m = {spec.beta:g} m + {fresh}"


def _look_ahead(spec: MuonSpec) -> str:
    if not spec.nesterov:
        return "none"
    fresh = "g" if spec.nesterov_style == "sgd" else f"{1 - spec.beta:g} g"
    correction = ", each divided by 1 - b^t" if spec.bias_correction else ""
    return f"{fresh} + {spec.beta:g} m{correction}"


def _coefficients(spec: MuonSpec) -> str:
    return f"{spec.coefficient_type}, {spec.num_ns_steps} steps, {spec.ns_dtype}"


def _scale(spec: MuonSpec) -> str:
    formula = {
        "spectral": "sqrt(max(out, in))",
        "consistent_rms": "sqrt(max(out, in))",
        "unit_rms_norm": "sqrt(out / in)",
        "shape_scaling": "sqrt(max(1, out / in))",
        "width_transfer": "sqrt(max(1, out / in))",
    }[spec.scale_mode]
    return f"{spec.extra_scale_factor:g} {formula}" if spec.extra_scale_factor != 1 else formula
