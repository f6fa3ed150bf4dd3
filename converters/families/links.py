"""A family's table, applied to one model: every parameter and the MaxText leaves it becomes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from converters.errors import CheckpointError
from converters.mapping import Link, Path, Spot

from .family import Family, Row
from .layers import place
from .model import Model
from .words import WORDS

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"


def links(family: Family, model: Model, scan: bool, names: Collection[str]) -> tuple[Link, ...]:
    """One link per parameter that the model must have.

    Args:
      family: whose table.
      model: sizes and features.
      scan: MaxText's ``scan_layers``.
      names: of the checkpoint; only to find the second copy of a tied embedding.

    Raises:
      CheckpointError: MaxText cannot arrange these layers.
    """
    found = [*_top(family, model, names)]
    for layer in range(model.layers):
        where = place(family, layer, model.layers, model.dense, scan)
        features = model.layer_features(layer, family.cycle)
        for row in family.layer:
            if row.applies(features):
                source = f"decoder.layers.{layer}.{row.source}"
                paths = [(*where.container, *_path(t, half=where.half)) for t in row.targets]
                found.append(_link(row, model, source, paths, where.slot))
    for layer in range(model.mtp):
        found.extend(_prediction_layer(family, model, layer))
    return tuple(found)


def _top(family: Family, model: Model, names: Collection[str]) -> Iterator[Link]:
    for row in family.top:
        if row.applies(model.features):
            tied = row.source == EMBEDDING and "tied" in model.features and OUTPUT in names
            alike = (OUTPUT,) if tied else ()
            paths = [_path(target) for target in row.targets]
            yield _link(row, model, row.source, paths, None, alike)


def _prediction_layer(family: Family, model: Model, layer: int) -> Iterator[Link]:
    """MaxText counts prediction layers from 1 and never scans them; each is a MoE layer."""
    number = str(layer + 1)
    for row in family.mtp:
        if row.applies(model.features):
            paths = [_path(target, k=number) for target in row.targets]
            yield _link(row, model, f"mtp.layers.{layer}.{row.source}", paths, None)
    container = ("mtp_block", f"mtp_layer_{number}", f"mtp_{number}_transformer_layer")
    features = model.layer_features(model.layers - 1, family.cycle)
    for row in family.layer:
        if row.applies(features):
            source = f"mtp.layers.{layer}.transformer_layer.{row.source}"
            paths = [(*container, *_path(target)) for target in row.targets]
            yield _link(row, model, source, paths, None)


def _path(target: str, **places: str) -> Path:
    for name, value in places.items():
        target = target.replace(f"{{{name}}}", value)
    return tuple(target.split("/"))


def _link(
    row: Row,
    model: Model,
    source: str,
    paths: list[Path],
    slot: int | None,
    alike: tuple[str, ...] = (),
) -> Link:
    transform = WORDS[row.word](model)
    if len(transform.chains) != len(paths):
        raise CheckpointError(
            f"row {row.source}: {row.word!r} makes {len(transform.chains)} targets, "
            f"{len(paths)} are named"
        )
    spots = tuple(Spot(path, slot) for path in paths)
    return Link(source, transform, spots, row.word == "buffer", alike)
