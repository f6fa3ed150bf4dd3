"""Forms of a legacy file that a CPU run does not write, made from those that one wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from converters.errors import CheckpointError
from converters.megatron.open import open_source
from converters.source import Key, Source, State

from .legacy_files import MODEL, copy, edit, read
from .test_legacy import differences

EP2 = "twins/muon_ep2_legacy"
LAYERS = (0, 1)


def changed(sample: str, tmp_path: Path, change: Callable[[Any], object]) -> tuple[Source, Source]:
    """A sample as it is, and with every rank's file changed."""
    folder = copy(sample, tmp_path)
    before = open_source(folder)
    arrays = {key: tensor.load().copy() for key, tensor in before.tensors.items()}
    for key, value in arrays.items():
        tensor = before.tensors[key]
        before.tensors[key] = type(tensor)(  # type: ignore[index]
            tensor.shape, tensor.dtype, tensor.origin, lambda value=value: value
        )
    for rank in folder.iterdir():
        edit(rank / MODEL, change)
    return before, open_source(folder)


def reordered(state: Any, names: Callable[[str], str], order: Callable[[list[str]], Any]) -> None:
    """Rename a dense model's parameters and put them in another order, Muon's states too."""
    old = [k for k, v in state["model"].items() if isinstance(v, torch.Tensor)]
    new = order([names(k) for k in old])
    weights = {names(k): state["model"][k] for k in old}
    state["model"] = {k: weights[k] for k in new}
    muon = [k for k in old if weights[names(k)].dim() == 2 and k.startswith("decoder.")]
    states = {names(k): state["optimizer"][0]["state"][i] for i, k in enumerate(muon)}
    moved = [k for k in new if k in states]
    state["optimizer"][0]["state"] = {i: states[k] for i, k in enumerate(moved)}


def test_norms_fused_by_transformer_engine(tmp_path: Path) -> None:
    def name(key: str) -> str:
        key = key.replace("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight")
        return key.replace("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight")

    def order(keys: list[str]) -> list[str]:
        moved = [k for k in keys if "layer_norm_weight" not in k]
        for norm in (k for k in keys if "layer_norm_weight" in k):
            moved.insert(moved.index(norm.replace("layer_norm_weight", "weight")), norm)
        return moved

    before, after = changed("dense_legacy", tmp_path, lambda s: reordered(s, name, order))
    assert differences(before.tensors, after.tensors) == []


def _grouped_name(key: str) -> str:
    for expert in range(2):
        for matrix in (1, 2):
            key = key.replace(
                f"local_experts.{expert}.linear_fc{matrix}.weight",
                f"linear_fc{matrix}.weight{expert}",
            )
    return key


def _experts_of(state: Any, child: int) -> tuple[list[str], dict[str, Any]]:
    keys = [k for k in state["model"] if ".experts." in k and k.endswith(".weight")]
    return keys, {k: state["optimizer"][child]["state"][i] for i, k in enumerate(keys)}


def test_experts_grouped_by_transformer_engine(tmp_path: Path) -> None:
    def change(state: Any) -> None:
        keys, states = _experts_of(state, 1)
        by_matrix = sorted(keys, key=lambda k: (k.split(".")[2], "fc2" in k, k))
        model = {}
        for key, value in state["model"].items():
            if key not in keys:
                model[key] = value
            elif key == next(k for k in keys if k.split(".")[2] == key.split(".")[2]):
                layer = [k for k in by_matrix if k.split(".")[2] == key.split(".")[2]]
                model |= {_grouped_name(k): state["model"][k] for k in layer}
        state["model"] = model
        state["optimizer"][1]["state"] = {i: states[k] for i, k in enumerate(by_matrix)}

    before, after = changed(EP2, tmp_path, change)
    assert differences(before.tensors, after.tensors) == []


def test_experts_in_one_matrix(tmp_path: Path) -> None:
    """Up to 0.16: all of a rank's experts in one tensor, laid out as [experts, in, out]."""

    def joined(values: list[torch.Tensor], matrix: int) -> torch.Tensor:
        stacked = torch.stack([value.T for value in values])
        return stacked.reshape(32, -1) if matrix == 1 else stacked.reshape(-1, 32)

    def change(state: Any) -> None:
        keys, states = _experts_of(state, 1)
        new: dict[str, torch.Tensor] = {}
        moments = []
        for layer in LAYERS:
            for matrix in (1, 2):
                own = [k for k in keys if f"layers.{layer}." in k and f"fc{matrix}" in k]
                name = f"decoder.layers.{layer}.mlp.experts.weight{matrix}"
                new[name] = joined([state["model"][k] for k in own], matrix)
                moments.append(joined([states[k]["momentum_buffer"] for k in own], matrix))
        model = {}
        for key, value in state["model"].items():
            layer = key.split(".")[2] if key in keys else ""
            if key not in keys:
                model[key] = value
            else:
                model |= {k: v for k, v in new.items() if f"layers.{layer}." in k}
        state["model"] = model
        state["optimizer"][1]["state"] = {i: {"momentum_buffer": m} for i, m in enumerate(moments)}
        state["optimizer"][1]["param_groups"][0]["params"] = list(range(4))

    before, after = changed(EP2, tmp_path, change)
    assert differences(before.tensors, after.tensors) == []


def test_moonshots_optimizer(tmp_path: Path) -> None:
    """One optimizer with groups of both kinds, whose momentum is a sum."""

    def change(state: Any) -> None:
        muon, adam = state["optimizer"]
        groups = [muon["param_groups"][0], *adam["param_groups"]]
        states: dict[int, Any] = {}
        for group, use_muon in zip(groups, (True, False, False), strict=True):
            own = muon if use_muon else adam
            first = len(states)
            for old in group["params"]:
                kept = own["state"][old]
                states[len(states)] = (
                    {"muon_buffer": kept["momentum_buffer"]}
                    if use_muon
                    else {f"adamw_{k}": kept[k] for k in ("exp_avg", "exp_avg_sq")}
                )
            group.update(params=list(range(first, len(states))), use_muon=use_muon, step=20)
        state["optimizer"] = {"state": states, "param_groups": groups}

    before, after = changed("dense_legacy", tmp_path, change)
    assert differences(before.tensors, after.tensors) == []
    assert (before.momentum, after.momentum) == (None, "sum")
    assert [o.step for o in after.run.optimizers] == [20]


def test_fused_down_projection(tmp_path: Path) -> None:
    """Its rows are the queries', then those of keys and values; Muon's momentum likewise."""

    def change(state: Any) -> None:
        vars(state["args"]).update(q_lora_rank=40, kv_lora_rank=16, qk_pos_emb_head_dim=8)
        old = "self_attention.linear_qkv.weight"
        new = "self_attention.linear_qkv_down_proj.weight"
        state["model"] = {k.replace(old, new): v for k, v in state["model"].items()}

    before, after = changed("dense_legacy", tmp_path, change)
    for layer in LAYERS:
        prefix = f"decoder.layers.{layer}.self_attention."
        for kept in (State.WEIGHT, State.MOMENTUM):
            whole = before.tensors[Key(prefix + "linear_qkv.weight", kept)].load()
            query = after.tensors[Key(prefix + "linear_q_down_proj.weight", kept)]
            rest = after.tensors[Key(prefix + "linear_kv_down_proj.weight", kept)]
            assert (query.shape, rest.shape) == ((40, 32), (24, 32))
            assert np.array_equal(np.concatenate([query.load(), rest.load()]), whole)


def _tensor_part(key: str, value: Any, tensor: int, expert_cuts: int) -> Any:
    """A tensor-parallel rank's half, cut as Megatron's layers are; norms and routers whole."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or "router" in key:
        return value
    number, cuts = (tensor % expert_cuts, expert_cuts) if ".experts." in key else (tensor, 2)
    if "linear_fc1" in key:
        gate, up = value.chunk(2)
        return torch.cat([gate.chunk(cuts)[number], up.chunk(cuts)[number]])
    axis = 1 if "linear_proj" in key or "linear_fc2" in key else 0
    return value.chunk(cuts, axis)[number].clone()


@pytest.mark.parametrize("expert_cuts", [1, 2])
def test_experts_cut_otherwise_than_the_rest(expert_cuts: int, tmp_path: Path) -> None:
    """Two tensor ranks, two expert ranks, and experts whole or in halves themselves."""
    before = open_source(copy(EP2, tmp_path))
    folder = tmp_path / "cut" / before.folder.name
    for rank in range(2 * expert_cuts):
        tensor, expert = rank % 2, rank // expert_cuts
        state = read(before.folder / f"mp_rank_00_{expert:03d}" / MODEL)
        keys = {k: v.dim() for k, v in state["model"].items() if isinstance(v, torch.Tensor)}
        ends = ("embedding.", "output_layer.")
        muon = [k for k, dim in keys.items() if dim == 2 and not k.startswith(ends)]
        owners = (
            [k for k in muon if ".experts." not in k],
            [k for k in muon if ".experts." in k],
            [k for k in keys if k.startswith(ends)] + [k for k, dim in keys.items() if dim == 1],
        )
        for child, owned in zip(state["optimizer"], owners, strict=True):
            for number, key in enumerate(owned):
                for name, value in child["state"][number].items():
                    part = _tensor_part(key, value, tensor, expert_cuts)
                    child["state"][number][name] = part
        for key, value in state["model"].items():
            state["model"][key] = _tensor_part(key, value, tensor, expert_cuts)
        vars(state["args"]).update(
            tensor_model_parallel_size=2,
            expert_tensor_parallel_size=expert_cuts,
            world_size=2 * expert_cuts,
            rank=rank,
        )
        file = folder / f"mp_rank_{tensor:02d}_{expert:03d}" / MODEL
        file.parent.mkdir(parents=True)
        torch.save(state, file)
    assert differences(before.tensors, open_source(folder).tensors) == []


def test_release_without_an_optimizer(tmp_path: Path) -> None:
    folder = copy("dense_legacy", tmp_path).rename(tmp_path / "release")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    edit(folder / "mp_rank_00" / MODEL, lambda s: [s.pop(k) for k in ("optimizer",)])
    source = open_source(tmp_path)
    assert {key.state for key in source.tensors} == {State.WEIGHT}
    assert len(source.tensors) == 15
    assert source.run.optimizers == ()


def test_weights_alone_need_no_whole_optimizer(tmp_path: Path) -> None:
    folder = copy("twins/adam_tp2pp2_legacy", tmp_path)
    (folder / "mp_rank_00_000" / "distrib_optim.pt").unlink()
    source = open_source(folder, optimizer=False)
    assert {key.state for key in source.tensors} == {State.WEIGHT}
    with pytest.raises(CheckpointError, match=r"distrib_optim\.pt"):
        open_source(folder)
