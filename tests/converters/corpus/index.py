"""An index whose pieces, places or names are wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.converters.hostile import edit_metadata, rebuild, rename

from .case import DISTCP, FIRST, HEAD, MOMENTUM, PROJ, SECOND, Case, Damage


def _entry(key: str, edit: Callable[[Any], object]) -> Damage:
    return lambda f: edit_metadata(f, lambda m: edit(m.state_dict_metadata[key]))


def _stored(key: str, number: int, **fields: Any) -> Damage:
    def edit(metadata: Any) -> None:
        infos = [info for place, info in metadata.storage_data.items() if place.fqn == key]
        for name, value in fields.items():
            old = getattr(infos[number], name)
            setattr(infos[number], name, value(old) if callable(value) else value)

    return lambda folder: edit_metadata(folder, edit)


def _chunk(key: str, number: int, **fields: Any) -> Damage:
    def edit(entry: Any) -> None:
        for name, value in fields.items():
            setattr(entry.chunks[number], name, value)

    return _entry(key, edit)


def _drop(part: str) -> Damage:
    """Leave out every entry with this in its key."""

    def edit(metadata: Any) -> None:
        kept = {k: v for k, v in metadata.state_dict_metadata.items() if part not in k}
        assert len(kept) < len(metadata.state_dict_metadata)
        metadata.state_dict_metadata = kept

    return _without_gaps(edit)


def _dropped(key: str) -> Damage:
    return _without_gaps(lambda metadata: metadata.state_dict_metadata.pop(key))


def _renamed(prefix: str, old: str, new: str) -> Damage:
    """Rename only the key that starts so."""
    key = prefix or old
    return _without_gaps(lambda m: _move(m, key, key.replace(old, new)))


def _move(metadata: Any, old: str, new: str) -> None:
    metadata.state_dict_metadata[new] = metadata.state_dict_metadata.pop(old)
    for place in [place for place in metadata.storage_data if place.fqn == old]:
        moved = type(place)(new, place.offset, place.index)
        metadata.storage_data[moved] = metadata.storage_data.pop(place)


def _exchange(one: str, other: str) -> Damage:
    def damage(folder: Path) -> None:
        for old, new in ((one, "aside."), (other, one), ("aside.", other)):
            rename(folder, old, new)

    return damage


def _without_gaps(edit: Callable[[Any], object]) -> Damage:
    """Edit the index, then forget and cut out what it no longer mentions."""

    def damage(folder: Path) -> None:
        def whole(metadata: Any) -> None:
            edit(metadata)
            known = metadata.state_dict_metadata
            metadata.storage_data = {
                place: info for place, info in metadata.storage_data.items() if place.fqn in known
            }

        edit_metadata(folder, whole)
        rebuild(folder, {})

    return damage


def _alias(old: str, new: str) -> Damage:
    """Save a tensor a second time under another name."""

    def damage(folder: Path) -> None:
        data = (folder / DISTCP).read_bytes()

        def edit(metadata: Any) -> None:
            metadata.state_dict_metadata[new] = metadata.state_dict_metadata[old]
            size = len(data)
            for place, info in list(metadata.storage_data.items()):
                if place.fqn == old:
                    copied = type(info)(info.relative_path, info.offset + size, info.length)
                    metadata.storage_data[type(place)(new, place.offset, place.index)] = copied

        edit_metadata(folder, edit)
        (folder / DISTCP).write_bytes(data + data)
        rebuild(folder, {})

    return damage


def _one_place(metadata: Any) -> None:
    places = {place.fqn: info for place, info in metadata.storage_data.items()}
    places[FIRST].offset, places[FIRST].length = places[HEAD].offset, places[HEAD].length


def _forget(metadata: Any, key: str) -> None:
    for place in [place for place in metadata.storage_data if place.fqn == key]:
        del metadata.storage_data[place]


def _index_is(value: Any) -> Damage:
    return lambda folder: (folder / ".metadata").write_bytes(pickle.dumps(value))


LAYER = "decoder.layers.1."
EXPERT = "decoder.layers.1.mlp.experts.experts.linear_fc1.weight"

_PIECES = [
    Case("pieces overlap", _chunk(PROJ, 1, offsets=torch.Size((0, 0, 0))), f"{PROJ}: .*overlap"),
    Case(
        "a piece is lost",
        _entry(PROJ, lambda e: e.chunks.pop()),
        rf"{PROJ}: .*hold 1024 of the 2048 elements",
    ),
    Case("no piece at all", _entry(PROJ, lambda e: e.chunks.clear()), f"{PROJ}.* 0 of the 2048"),
    Case(
        "a piece outside", _chunk(PROJ, 1, offsets=torch.Size((2, 0, 0))), r"\.metadata: .*outside"
    ),
    Case("a piece too wide", _chunk(PROJ, 1, sizes=torch.Size((1, 32, 33))), r"\.metadata: .*outs"),
    Case("a piece too narrow", _chunk(PROJ, 1, sizes=torch.Size((1, 32, 31))), f"{PROJ}: .*hold"),
    Case("a negative offset", _chunk(PROJ, 1, offsets=(-1, 0, 0)), r"\.metadata: .*-1"),
    Case("a fractional size", _chunk(PROJ, 1, sizes=(1.0, 32, 32)), r"\.metadata: .*1\.0"),
    Case("a size of another rank", _chunk(PROJ, 1, sizes=(32, 32)), r"\.metadata"),
    Case("words for sizes", _chunk(PROJ, 1, sizes=("1", "32", "32")), r"\.metadata"),
    Case(
        "a huge shape",
        lambda f: (
            _entry(HEAD, lambda e: setattr(e, "size", (10**9, 10**9)))(f),
            _chunk(HEAD, 0, sizes=(10**9, 10**9))(f),
        ),
        rf"{HEAD}: .*cannot hold",
    ),
    Case(
        "another dtype",
        _entry(HEAD, lambda e: setattr(e.properties, "dtype", torch.float64)),
        rf"{HEAD}.*(cannot hold|float64)",
    ),
    Case(
        "a narrower dtype",
        _entry(HEAD, lambda e: setattr(e.properties, "dtype", torch.bfloat16)),
        rf"{HEAD}.*float32.*bfloat16",
    ),
    Case(
        "complex numbers",
        _entry(HEAD, lambda e: setattr(e.properties, "dtype", torch.complex64)),
        r"complex64",
    ),
    Case("a place too early", _stored(HEAD, 0, offset=lambda o: o - 8), r"__0_0\.distcp: .*bytes"),
    Case("a place too late", _stored(HEAD, 0, offset=lambda o: o + 8), r"__0_0\.distcp: .*byte"),
    Case("a place beyond the end", _stored(HEAD, 0, offset=10**12), r"__0_0\.distcp: .*byte"),
    Case("a negative place", _stored(HEAD, 0, offset=-8), r"__0_0\.distcp"),
    Case("a place too long", _stored(HEAD, 0, length=lambda n: n + 64), r"__0_0\.distcp"),
    Case("a place too short", _stored(HEAD, 0, length=lambda n: n - 64), r"__0_0\.distcp"),
    Case("no length", _stored(HEAD, 0, length=0), rf"{HEAD}|__0_0\.distcp"),
    Case("a place in a missing file", _stored(HEAD, 0, relative_path="__9_0.distcp"), r"__9_0"),
    Case("a place above", _stored(HEAD, 0, relative_path="../x"), r"\.metadata: .*outside"),
    Case("an absolute place", _stored(HEAD, 0, relative_path="/etc/passwd"), r"\.metadata: .*pass"),
    Case("a place in the index", _stored(HEAD, 0, relative_path=".metadata"), r"\.metadata"),
    Case("a nameless place", _stored(HEAD, 0, relative_path=""), r"\.metadata"),
    Case(
        "two tensors in one place",
        lambda f: edit_metadata(f, _one_place),
        r"__0_0\.distcp: .*shares bytes",
    ),
    Case(
        "a tensor in no place",
        lambda f: edit_metadata(f, lambda m: _forget(m, HEAD)),
        r"\.metadata: .*output_layer",
    ),
    Case(
        "moments exchanged",
        _exchange(f"exp_avg.{HEAD}", f"exp_avg_sq.{HEAD}"),
        r"output_layer\.weight \(exp_avg_sq\): -.* at index \[\d+, \d+\]",
    ),
    Case("no state at all in the index", _index_is({}), r"\.metadata: not the metadata"),
    Case("an index of a list", _index_is([1]), r"\.metadata: not the metadata"),
    Case(
        "an index without places",
        lambda f: edit_metadata(f, lambda m: m.__dict__.pop("storage_data")),
        r"\.metadata: fields are missing",
    ),
    Case(
        "places of another kind",
        lambda f: edit_metadata(f, lambda m: setattr(m, "storage_data", {1: 2})),
        r"\.metadata: fields are missing",
    ),
]

_NAMES = [
    Case("the weights' key renamed", _renamed("", PROJ, PROJ + "x"), "linear_proj.*renamed"),
    Case("momentum's key renamed", _renamed(MOMENTUM, PROJ, PROJ + "x"), "linear_proj.*renamed"),
    Case(
        "momentum of another name",
        lambda f: rename(f, "momentum_buffer", "momentum_bufer"),
        r"optimizer\.state\.momentum_bufer\..*neither Muon's nor Adam's.*--no-optimizer",
    ),
    Case(
        "one moment of another name",
        lambda f: rename(f, SECOND, SECOND.replace("exp_avg_sq", "exp_avg_squared")),
        "exp_avg_squared.*--no-optimizer",
    ),
    Case("Adam is missing", _drop("optimizer.state.exp_avg"), "no optimizer state, as 7 of 15"),
    Case("Muon is missing", _drop("momentum_buffer"), "linear_.*no optimizer state, as 8 of 15"),
    Case("one moment is missing", _drop("exp_avg_sq"), r"exp_avg is neither .*exp_avg_sq"),
    Case("momentum of one matrix", _drop(MOMENTUM), "linear_proj.weight: no optimizer state, as 2"),
    Case(
        "some masters are missing",
        _drop(f"fp32_param.{HEAD}"),
        r"output_layer\.weight: no master weight",
        "bf16_td",
    ),
    Case(
        "a master without its state",
        _drop(f"momentum_buffer.{PROJ}"),
        r"linear_proj\.weight: a master weight, but no optimizer state",
        "bf16_td",
    ),
    Case("a weight is missing", _dropped(HEAD), "output_layer.*no such weight"),
    Case(
        "a layer is missing",
        _drop(LAYER),
        r"num_layers=2.*decoder\.layers\.1 is not saved",
        "moe_mixed_shared_td",
    ),
    Case(
        "a layer too many",
        _alias(f"decoder.layers.0.{PROJ[15:]}", f"decoder.layers.2.{PROJ[15:]}"),
        r"num_layers=2.*decoder\.layers\.2 is saved too",
        "moe_mixed_shared_td",
    ),
    Case(
        "a layer of another number",
        lambda f: rename(f, "layers.1.", "layers.3."),
        r"decoder\.layers\.1 is not saved",
        "moe_mixed_shared_td",
    ),
    Case(
        "a parameter twice",
        _alias(
            "decoder.layers.self_attention.linear_qkv.layer_norm_weight",
            "decoder.layers.input_layernorm.weight",
        ),
        r"input_layernorm\.weight.*there twice",
    ),
    Case(
        "a state twice",
        _alias(MOMENTUM, f"chained_0.{MOMENTUM}"),
        r"linear_proj\.weight \(momentum_buffer\).*twice",
    ),
    Case(
        "Muon's and Adam's state for one parameter",
        _alias(FIRST, FIRST.replace("exp_avg", "momentum_buffer")),
        r"output_layer\.weight: optimizer state exp_avg, exp_avg_sq, momentum_buffer",
    ),
    Case(
        "half a gate",
        lambda f: rename(f, "0.mlp.linear_fc1.weight", "0.mlp.linear_fc1.weight_w"),
        r"decoder\.layers\.0\.mlp\.linear_fc1\.weight.*half is missing",
        "moe_mixed_shared_td",
    ),
    Case(
        "one expert alone",
        lambda f: rename(f, "experts.experts.linear_fc1", "experts.experts.3.linear_fc1"),
        r"mlp\.experts\.linear_fc1\.weight.*an expert.*missing",
        "moe_mixed_shared_td",
    ),
    Case(
        "experts as one",
        lambda f: rename(f, "experts.experts.linear_fc1", "experts.experts.0.linear_fc1"),
        r"mlp\.experts\.linear_fc1\.weight.*num_experts=4",
        "moe_mixed_shared_td",
    ),
    Case(
        "layers of a scalar",
        lambda f: rename(
            f,
            "optimizer.state.module.module.module.output_layer.weight.step",
            "model.module.decoder.layers.mlp.step",
        ),
        r"decoder\.layers\.mlp\.step: no axis of layers",
        "adam_bf16_fsdp_dtensor",
    ),
    Case(
        "a number too many",
        lambda f: rename(f, "optimizer.state.9.", "optimizer.state.99."),
        r"optimizer\.state\.99\.",
        "adam_torch_dcp_fsdp2",
    ),
    Case(
        "groups of another order",
        _exchange("optimizer.state.9.", "optimizer.state.10."),
        r"state (9|10) has shape .*--no-optimizer",
        "adam_torch_dcp_fsdp2",
    ),
    Case(
        "a parameter in no group",
        _alias("model.output_layer.weight", "model.second_output.weight"),
        r"does not fit the order of the model's keys",
        "adam_torch_dcp_fsdp2",
    ),
    Case(
        "state of an unknown parameter",
        lambda f: rename(f, "module.output_layer.weight.exp", "module.output.weight.exp"),
        r"output\.weight \(exp_avg\): there is no such weight",
        "adam_bf16_fsdp_dtensor",
    ),
    Case(
        "up without its gate",
        _drop("linear_fc1.weight_w"),
        r"linear_fc1\.weight.*half is missing",
        "adam_bf16_fsdp_dtensor",
    ),
]

CASES = (*_PIECES, *_NAMES)
