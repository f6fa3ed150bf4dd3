"""The table. Adding a line here is all that a new case takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from checks.trainers.megatron.models import model
from checks.trainers.megatron.options import RFC, Layout, Optimizer
from checks.trainers.megatron.training import Training

from . import layouts
from .row import FIRST, LAST, WINDOWS, Row


def _training(name: str, **changes: Any) -> Training:
    """A run of that model with one checkpoint, or one for each window where there are experts."""
    found = model(name)
    saves = (FIRST,) if found.experts is None else WINDOWS
    return Training(found, steps=LAST, saves=saves).replace(**changes)


def _dense(name: str, title: str, **further: Any) -> Row:
    return Row(name, title, _training(name), **further)


def _muon(name: str, title: str, **settings: Any) -> Row:
    return Row(name, f"qwen3, {title}", _training("qwen3", optimizer=Optimizer(settings)))


def _layout(tensor: int, pipeline: int) -> Row:
    layout = Layout(tensor, pipeline)
    title = f"qwen3, trained with TP{tensor} and PP{pipeline}"
    return Row(f"qwen3_tp{tensor}_pp{pipeline}", title, _training("qwen3", layout=layout))


def _experts(name: str, title: str, gate: str) -> Iterator[Row]:
    training = _training(name)
    yield Row(f"{name}_windows", f"{title}, windows", training, gate, restarted=True, floor=True)
    yield Row(name, f"{title}, free run", training, "training_over_floor", floor=True)


def _exact(row: Row) -> Row:
    return dataclasses.replace(
        row,
        name=f"{row.name}_f64_exact",
        title=f"{row.title}, both in float64, MaxText's RMSNorm too",
        training=row.training.replace(dtype="float64"),
        gate="training_f64_exact",
        floor=False,
        exact=True,
        spec_overrides=_NS_F64,
    )


_NS_F64 = {"ns_dtype": "float64"}
_MEDIUM = Optimizer({"muon_fp32_matmul_prec": "medium"})
# Ten steps amplify rounding beyond the limit: its own floor stands beside it.
_DEEPSEEK_V4 = dataclasses.replace(
    _muon(
        "deepseekv4",
        "coefficients of DeepSeek-V4, ten steps",
        muon_coefficient_type="deepseekv4",
        muon_num_ns_steps=10,
    ),
    floor=True,
)

ROWS: tuple[Row, ...] = (
    _dense("qwen3", "qwen3", floor=True),
    _dense("qwen3_tied", "qwen3, tied embeddings", scan=True),
    _dense("qwen3_gqa8", "qwen3, eight heads of query to one of key and value", release="0.2.4"),
    _dense("qwen3_deep", "qwen3, eight layers", scan=True),
    _dense("llama", "llama, folded query", scan=True),
    _dense("mistral", "mistral, folded query", release="0.2.3"),
    _dense("mla", "multi-latent attention, dense"),
    _layout(2, 1),
    _layout(1, 2),
    _layout(2, 2),
    *_experts("qwen3_moe", "qwen3 with experts", "training_window"),
    *_experts("mixtral", "mixtral, folded query", "training_window"),
    *_experts("deepseek", "deepseek, shared expert", "training_mla_window"),
    *_experts("deepseek_yarn", "deepseek, shared expert, yarn", "training_mla_window"),
    _muon("split_qkv_off", "fused projection", muon_split_qkv=False),
    _muon("simple", "simple coefficients", muon_coefficient_type="simple"),
    _muon(
        "polar_express",
        "polar express, eight steps",
        muon_coefficient_type="polar_express",
        muon_num_ns_steps=8,
    ),
    _DEEPSEEK_V4,
    _muon("unit_rms_norm", "unit_rms_norm", muon_scale_mode="unit_rms_norm"),
    _muon("nesterov_off", "without Nesterov", muon_nesterov=False),
    Row(
        "gpu_decay",
        "qwen3, without Nesterov, AdamW's decay subtracted as on a GPU",
        _training("qwen3", optimizer=Optimizer({"muon_nesterov": False}, subtract_decay=True)),
        spec_overrides={"adam_decay_style": "subtract"},
    ),
    _muon("qk_norm_decay", "weight decay on the norms of q and k", apply_wd_to_qk_layernorm=True),
    _muon("adam", "AdamW alone", optimizer="adam"),
    Row(
        "schedule",
        "qwen3, warm-up and cosine decay",
        _training("qwen3", optimizer=Optimizer({"min_lr": 2e-4}, {}, "cosine", 100, LAST)),
    ),
    Row(
        "medium",
        "qwen3, Newton-Schulz in bfloat16",
        _training("qwen3", optimizer=_MEDIUM),
        "training_over_floor",
        floor=True,
    ),
    Row(
        "rfc",
        "qwen3, the optimizer of RFC-0023: sums, per head, gate apart, stacks of 16, norm decay",
        _training("qwen3", optimizer=Optimizer(rfc=RFC), reference="rfc"),
        floor=True,
        spec_overrides={"ns_dtype": "float32"},
    ),
    Row(
        "qwen3_f64",
        "qwen3, both in float64",
        _training("qwen3", dtype="float64"),
        "training_f64",
        spec_overrides=_NS_F64,
    ),
    _exact(_dense("qwen3", "qwen3")),
    _exact(_dense("llama", "llama, folded query")),
    _exact(_dense("mla", "multi-latent attention, dense")),
    _exact(_DEEPSEEK_V4),
)


# Not a training of its own: the first checkpoint of this row in every layout.
LAYOUTS_OF = "qwen3"
TITLES = {**{entry.name: entry.title for entry in ROWS}, "layouts": layouts.TITLE}


def row(name: str) -> Row:
    """The row of that name.

    Raises:
      KeyError: there is none.
    """
    return {entry.name: entry for entry in ROWS}[name]
