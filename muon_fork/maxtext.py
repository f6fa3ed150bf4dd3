"""What a migrated MaxText checkout asks of this package, from its own configuration.

The checkout calls three functions: ``muon_kwargs`` and ``adam_weight_decay_mask`` where it builds
the optimizer, ``dimension_rules`` where it builds the dimension-number tree.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from .config_keys import Config, spec_from_config
from .decay_mask import decays
from .model_dimensions import ModelDimensions
from .rules import UNKNOWN, Answer, dimension_numbers_for

__all__ = [
    "UNKNOWN",
    "Route",
    "adam_weight_decay_mask",
    "dimension_rules",
    "muon_kwargs",
    "routing_table",
]

logger = logging.getLogger(__name__)

Rules = Callable[..., Answer]

_NUMBER = re.compile(r"\d+")


class Route(NamedTuple):
    """Where one parameter goes: path, shape, dimension numbers, and decay in the AdamW branch."""

    path: str
    shape: tuple[int, ...]
    answer: Answer
    decays: bool


def muon_kwargs(config: Config, model: Any = None) -> dict[str, Any]:
    """Keyword arguments of ``muon()`` that the configuration settles.

    Args:
      config: MaxText's configuration.
      model: MaxText's model; whole matrices are spread over its ``mesh``. Without one only leaves
        whose dimension numbers carry a sharding are.

    Raises:
      SpecError: configuration keys are missing or contradict each other.
    """
    # The scale mode carries the factor; MaxText's own argument for it would be a second one.
    mesh = getattr(model, "mesh", None)
    return {**spec_from_config(config).muon_kwargs(), "consistent_rms": None, "mesh": mesh}


def adam_weight_decay_mask(config: Config) -> Callable[[Any], Any] | None:
    """Mask of the AdamW branch: parameters -> tree of bool, or None if everything decays.

    The tree has the structure of the parameters, whether they are Linen dictionaries with boxed
    leaves, an ``nnx.State``, or a tree in which the Muon parameters are masked out.
    """
    spec = spec_from_config(config)
    if spec.decay_all_adam_params:
        return None

    def leaf_decays(path: tuple[Any, ...], leaf: Any) -> bool:
        return decays(segments(path), jax.numpy.shape(leaf), spec)

    return lambda params: jax.tree_util.tree_map_with_path(leaf_decays, params)


def dimension_rules(config: Config) -> Rules:
    """The rules of the configured model and Muon: ``rules(path, shape=None)``.

    A rule answers with MuonDimensionNumbers, None for AdamW, or UNKNOWN: then the caller decides.
    Each unknown path is logged as a warning, once for all its layers.
    """
    spec = spec_from_config(config)
    dimensions = ModelDimensions.from_config(config)
    reported: set[str] = set()

    def rules(path: Iterable[object], shape: Sequence[int] | None = None) -> Answer:
        answer = dimension_numbers_for(path, dimensions, spec, shape)
        if answer is UNKNOWN:
            _report_unknown("/".join(map(str, path)), shape, reported)
        return answer

    return rules


def routing_table(params: Any, config: Config) -> tuple[Route, ...]:
    """One row per parameter, in tree order, as the rules route it (boxed leaves are opened)."""
    spec = spec_from_config(config)
    dimensions = ModelDimensions.from_config(config)
    return tuple(
        Route(
            "/".join(path),
            shape,
            dimension_numbers_for(path, dimensions, spec, shape),
            decays(path, shape, spec),
        )
        for path, shape in _leaves(params)
    )


def segments(path: Iterable[Any]) -> tuple[str, ...]:
    """Names in a JAX key path; attributes of boxes (``.value``) are no names."""
    return tuple(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))


def _leaves(params: Any) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        yield segments(path), tuple(jax.numpy.shape(leaf))


def _report_unknown(path: str, shape: Sequence[int] | None, reported: set[str]) -> None:
    pattern = _NUMBER.sub("*", path)
    if pattern in reported:
        return
    reported.add(pattern)
    logger.warning(
        "Muon: no rule knows %s of shape %s; transform_logic of this checkout decides",
        path,
        None if shape is None else tuple(shape),
    )
