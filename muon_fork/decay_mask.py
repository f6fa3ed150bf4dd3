"""Which parameters of the AdamW branch decay.

Megatron exempts biases and whatever is one-dimensional, and can bring norms back:
``--apply-wd-to-qk-layernorm``, and RFC-0023's ``--weight-decay-norm-params``. Embedding and output
layer are matrices and decay. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .module_names import SCANNED, Role, clean_path, locate
from .spec import MuonSpec


def decays(path: Iterable[object], shape: Sequence[int], spec: MuonSpec) -> bool:
    """Whether ``adam_weight_decay`` acts on a parameter.

    Args:
      path: segments of its path.
      shape: of the leaf, layer axes included. Only for a path without a role: it decays if it is a
        matrix without its layer axes.
      spec: says whether norms decay, and whether there is a mask at all.
    """
    if spec.decay_all_adam_params:
        return True
    segments = clean_path(path)
    place = locate(segments)
    if place is None:
        return len(shape) - sum(name in SCANNED for name in segments) > 1
    if place.role is Role.QK_NORM:
        return spec.weight_decay_norm_params or spec.apply_wd_to_qk_layernorm
    if place.role is Role.NORM:
        return spec.weight_decay_norm_params
    return place.role not in (Role.BIAS, Role.VECTOR)
