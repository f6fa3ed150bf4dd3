"""The table of a checkpoint against the tensors that torch reads from it."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from converters.errors import CheckpointError
from converters.megatron.open import open_source
from converters.megatron.torch_dist import open_checkpoint, open_index, read_tensor
from converters.source import Key, Source, State

from .hostile import DATA, DISTRIBUTED, copy, rename


@pytest.fixture(scope="module", params=DISTRIBUTED)
def source(request: pytest.FixtureRequest) -> Source:
    return open_source(DATA / request.param)


def test_every_saved_element_is_in_the_table_once(source: Source) -> None:
    left = {aside.name for aside in source.set_aside}
    saved = sum(
        np.prod(entry.shape)
        for key, entry in open_index(source.folder).tensors.items()
        if key not in left and not key.endswith(".step")
    )
    assert not any("exp_avg" in name or "momentum" in name for name in left)
    assert sum(np.prod(tensor.shape) for tensor in source.tensors.values()) == saved


def test_tensors_are_what_the_table_says(source: Source) -> None:
    for key, tensor in source.tensors.items():
        values = tensor.load()
        assert (values.shape, values.dtype) == (tensor.shape, tensor.dtype), key
        assert not values.flags.writeable


def test_every_parameter_has_the_state_of_one_optimizer(source: Source) -> None:
    states: dict[str, set[State]] = {}
    for key in source.tensors:
        states.setdefault(key.parameter, set()).add(key.state)
    adam = {State.EXP_AVG, State.EXP_AVG_SQ}
    for name, held in states.items():
        muon = source.tensors[Key(name, State.WEIGHT)].shape[1:] and not name.startswith(
            ("embedding.", "output_layer.")
        )
        if source.run.arguments["optimizer"] == "adam":
            muon = ()
        expected = {State.MOMENTUM} if muon else adam
        assert held - {State.WEIGHT, State.MASTER} == expected, name


def test_masters_round_to_the_weights(source: Source) -> None:
    masters = [key for key in source.tensors if key.state is State.MASTER]
    low = source.run.arguments["bf16"]
    # The FSDP back ends keep their masters as the model's tensors.
    kept = low or source.run.arguments["optimizer"] == "adam"
    assert bool(masters) == (kept and source.format == "torch_dist")
    for key in masters:
        weight = source.tensors[Key(key.parameter, State.WEIGHT)].load()
        assert weight.dtype == (ml_dtypes.bfloat16 if low else np.float32)
        np.testing.assert_array_equal(source.tensors[key].load().astype(weight.dtype), weight)


def test_layers_come_in_order(source: Source) -> None:
    names = [key.parameter for key in source.tensors]
    numbers = [int(m[1]) for n in names if (m := re.match(r"decoder\.layers\.(\d+)\.", n))]
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1}
    assert names[0] == "embedding.word_embeddings.weight"


def _read(name: str, key: str) -> NDArray[np.float32]:
    return read_tensor(open_checkpoint(DATA / name / "iter_0000020"), key)


def test_stacked_layers_are_taken_apart() -> None:
    source = open_source(DATA / "moe_ep2_td")
    for state, prefix in (
        (State.WEIGHT, ""),
        (State.MOMENTUM, "optimizer.state.momentum_buffer."),
    ):
        whole = _read("moe_ep2_td", prefix + "decoder.layers.mlp.experts.experts.linear_fc1.weight")
        for layer in range(2):
            key = Key(f"decoder.layers.{layer}.mlp.experts.linear_fc1.weight", state)
            np.testing.assert_array_equal(source.tensors[key].load(), whole[layer])


def test_fused_norms_have_their_own_names() -> None:
    source = open_source(DATA / "dense_td", iteration=20)
    whole = _read("dense_td", "decoder.layers.mlp.linear_fc1.layer_norm_weight")
    key = Key("decoder.layers.1.pre_mlp_layernorm.weight", State.WEIGHT)
    np.testing.assert_array_equal(source.tensors[key].load(), whole[1])


def test_layouts_of_one_run_agree() -> None:
    """The same model saved by two versions: the same names and shapes."""
    first, second = (open_source(DATA / n) for n in ("v0.16.1_dense_td", "v0.18.2_dense_td"))
    assert {k: t.shape for k, t in first.tensors.items()} == {
        k: t.shape for k, t in second.tensors.items()
    }


def test_what_is_left_has_a_reason(source: Source) -> None:
    assert source.set_aside
    for aside in source.set_aside:
        assert aside.reason != "not known to this tool", aside.name
    assert any(aside.name.startswith("rng_state") for aside in source.set_aside)


@pytest.mark.parametrize(
    ("name", "form"),
    [("adam_torch_dcp_fsdp2", "torch_dcp"), ("adam_bf16_fsdp_dtensor", "fsdp_dtensor")],
)
def test_states_go_to_their_parameters(name: str, form: str) -> None:
    """Padding of the vocabulary is never looked up, but always a wrong answer of the softmax."""
    source = open_source(DATA / name)
    assert source.format == form
    for parameter, trained in (("embedding.word_embeddings", False), ("output_layer", True)):
        moment = source.tensors[Key(f"{parameter}.weight", State.EXP_AVG)].load()
        assert moment[:99].any()
        assert moment[99:].any() == trained
    for key, tensor in source.tensors.items():
        assert tensor.shape == source.tensors[Key(key.parameter, State.WEIGHT)].shape
    assert source.run.schedule["num_steps"] == 80
    (adam,) = source.run.optimizers
    assert adam.step == 20


def test_gate_comes_before_up() -> None:
    """fsdp_dtensor keeps the halves of fc1 apart."""
    source = open_source(DATA / "adam_bf16_fsdp_dtensor")
    checkpoint = open_index(source.folder)
    for prefix, suffix, state in (
        ("model.module", "", State.WEIGHT),
        ("optimizer.state.module.module.module", ".exp_avg_sq", State.EXP_AVG_SQ),
    ):
        disk = f"{prefix}.decoder.layers.1.mlp.linear_fc1.weight"
        halves = [read_tensor(checkpoint, f"{disk}_{half}{suffix}") for half in "wv"]
        joined = source.tensors[Key("decoder.layers.1.mlp.linear_fc1.weight", state)].load()
        np.testing.assert_array_equal(joined, np.concatenate(halves))


SPELLINGS = {
    "nested chains": (("optimizer.state.", "chained_1.chained_0.optimizer.state."),),
    "norms of their own": (
        ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
        ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    ),
    "masters by another name": (("state.param.", "state.fp32_param."),),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_the_same_table(spelling: str, tmp_path: Path) -> None:
    name = "adam_distopt_fully_reshardable_td" if "master" in spelling else "dense_td"
    folder = copy(name, tmp_path)
    expected = open_source(folder)
    for old, new in SPELLINGS[spelling]:
        rename(folder, old, new)
    found = open_source(folder)
    assert found.tensors.keys() == expected.tensors.keys()
    assert found.momentum is None
    for key, tensor in found.tensors.items():
        np.testing.assert_array_equal(tensor.load(), expected.tensors[key].load())


def test_buffers_of_moonshots_optimizer_are_sums(tmp_path: Path) -> None:
    folder = copy("dense_td", tmp_path)
    expected = open_source(folder).tensors.keys()
    rename(folder, "state.momentum_buffer.", "state.muon_buffer.")
    rename(folder, "state.exp_avg", "state.adamw_exp_avg")
    found = open_source(folder)
    assert found.tensors.keys() == expected
    assert found.momentum == "sum"


def test_iterations_are_chosen_by_number() -> None:
    assert open_source(DATA / "dense_td").run.iteration == 21
    assert open_source(DATA / "dense_td", iteration=20).run.iteration == 20
    folder = DATA / "dense_td" / "iter_0000020"
    assert open_source(folder, iteration=20).folder == folder
    with pytest.raises(CheckpointError, match=r"no iter_0000007; there are iter_0000020, iter"):
        open_source(DATA / "dense_td", iteration=7)
    with pytest.raises(CheckpointError, match="no iter_0000021; there is none"):
        open_source(folder, iteration=21)


def test_weights_alone_leave_the_state_aside() -> None:
    source = open_source(DATA / "dense_td", optimizer=False)
    assert {key.state for key in source.tensors} == {State.WEIGHT}
    reasons = [a.reason for a in source.set_aside if a.name.startswith("optimizer.state.")]
    assert len(reasons) == 14
    assert all("only weights" in reason for reason in reasons)


def test_a_missing_tracker_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "iter_0000020").mkdir()
    with pytest.raises(CheckpointError, match=r"latest_checkpointed_iteration\.txt: missing"):
        open_source(tmp_path)
