"""Rotary embeddings on both sides: which channels rotate together, and MaxText's keys for it.

Megatron rotates channel i with i + n/2 ("halves"), with ``--rotary-interleaved`` and in MLA 2i with
2i + 1 ("pairs"). MaxText decides by ``rope_type``: default is halves, llama3.1 is pairs, yarn is
pairs unless ``rope_interleave`` is off. Where the two differ, channels of q and k are reordered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from converters.errors import CheckpointError

Order = Literal["pairs", "halves"]

# Megatron's configuration defaults for MLA, which its command line does not always record.
_YARN_DEFAULTS = {"original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}


@dataclass(frozen=True)
class Rope:
    """How q and k rotate.

    Attributes:
      reorder: the order that MaxText wants their channels in, None if they already are.
      config: MaxText's keys.
      notes: what was assumed.
    """

    reorder: Order | None
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def rope_of(decoder_block: str, arguments: Mapping[str, Any]) -> Rope:
    """The rotation of a run.

    Raises:
      CheckpointError: positions that MaxText's decoder blocks do not compute.
    """
    _refuse(arguments)
    base = {"rope_max_timescale": _whole("rotary_base", arguments.get("rotary_base", 10000))}
    if arguments.get("multi_latent_attention"):
        return _mla(arguments, base)
    pairs = bool(arguments.get("rotary_interleaved"))
    if arguments.get("use_rope_scaling"):
        factor = arguments.get("rope_scaling_factor", 8.0)
        if factor != 8.0:
            raise CheckpointError(
                f"rope_scaling_factor={factor!r}: MaxText's llama3.1 rotation has factor 8 only"
            )
        return Rope(None if pairs else "pairs", {**base, "rope_type": "llama3.1"})
    if arguments.get("position_embedding_type") == "yarn":
        config, notes = _yarn(arguments, interleave=False)
        return Rope("halves" if pairs else None, {**base, **config}, notes)
    return Rope("halves" if pairs else None, {**base, "rope_type": "default"})


def _mla(arguments: Mapping[str, Any], base: Mapping[str, Any]) -> Rope:
    """MLA's rotary channels lie in pairs on disk; its softmax scale grows with mscale_all_dim."""
    if arguments.get("rope_type", "yarn") in ("yarn", None):
        config, notes = _yarn(arguments, interleave=True)
        return Rope(None, {**base, **config}, notes)
    length = _whole("max_position_embeddings", arguments.get("max_position_embeddings", 4096))
    config = {"rope_type": "default", "mscale": 1.0, "rope_factor": 1}
    config |= {"max_position_embeddings": length, "original_max_position_embeddings": length}
    all_dim = arguments.get("mscale_all_dim") or 0.0
    factor = arguments.get("rotary_scaling_factor") or 1.0
    if all_dim and factor > 1:
        # MaxText applies mscale where the positions exceed the original ones, and only there.
        config |= {"mscale": float(all_dim), "rope_factor": _whole("rotary_scaling_factor", factor)}
        config["original_max_position_embeddings"] = max(1, length - 1)
    return Rope("halves", {**base, **config})


def _yarn(arguments: Mapping[str, Any], interleave: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    read, notes = {}, []
    for name, default in _YARN_DEFAULTS.items():
        value = arguments.get(name, arguments.get(f"yarn_{name}"))
        if value is None:
            notes.append(f"{name} is not recorded: Megatron's default {default}")
        read[name] = _whole(name, default if value is None else value)
    factor = arguments.get("rotary_scaling_factor") or arguments.get("yarn_rotary_scaling_factor")
    if factor is None:
        raise CheckpointError("yarn without rotary_scaling_factor in the arguments")
    mscale = arguments.get("mscale", 1.0)
    all_dim = arguments.get("mscale_all_dim") or 0.0
    longest = arguments.get("max_position_embeddings") or 0
    original = read["original_max_position_embeddings"]
    # MaxText's table of angles must cover the sequence, and exceed the original to be scaled.
    covered = max(_whole("max_position_embeddings", longest), int(original * factor), original + 1)
    round_to_int = arguments.get("yarn_correction_range_round_to_int")
    config = {
        **read,
        "rope_type": "yarn",
        "rope_factor": _whole("rotary_scaling_factor", factor),
        "rope_interleave": interleave,
        "rope_truncate": True if round_to_int is None else bool(round_to_int),
        "rope_attention_scaling": _concentrates(float(factor), float(mscale), float(all_dim)),
        "mscale": float(all_dim),
        "max_position_embeddings": covered,
    }
    return config, tuple(notes)


def _concentrates(factor: float, mscale: float, all_dim: float) -> bool:
    """Whether cosines and sines carry yarn's factor: MaxText's is 0.1 ln(factor) + 1, or none."""

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    ratio = grown(mscale) / grown(all_dim)
    for scaled, value in ((False, 1.0), (True, grown(1.0))):
        if math.isclose(ratio, value, rel_tol=1e-12):
            return scaled
    raise CheckpointError(
        f"mscale={mscale}, mscale_all_dim={all_dim}: rotary embeddings would be multiplied by "
        f"{ratio}, MaxText knows 1 and {grown(1.0)}"
    )


def _refuse(arguments: Mapping[str, Any]) -> None:
    kind = arguments.get("position_embedding_type", "rope")
    if kind not in ("rope", "yarn"):
        raise CheckpointError(f"position_embedding_type={kind!r}: expected rope or yarn")
    for name, plain in (
        ("rotary_percent", (None, 1, 1.0)),
        ("rotary_seq_len_interpolation_factor", (None, 1)),
        ("no_rope_freq", (None, 0)),
        ("mrope_section", (None,)),
    ):
        if arguments.get(name) not in plain:
            raise CheckpointError(f"{name}={arguments[name]!r}: no MaxText family rotates so")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise CheckpointError(f"{name}={value!r}: MaxText takes a whole number")
    return int(value)
