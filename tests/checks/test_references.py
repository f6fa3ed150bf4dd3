"""The fork, in float64 where it can be, against every other reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from checks.references import deepseek, numpy_muon, torch_muon
from checks.references.matrices import (
    Array,
    Blocks,
    Qkv,
    Trajectory,
    component_rows,
    fc1_blocks,
    mla_blocks,
    qkv_blocks,
)
from checks.tolerances import limit
from muon_fork._muon import muon
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.presets import preset
from muon_fork.spec import MuonSpec, SpecError

RATE = 0.02
STEPS = 20
SHAPES = ((24, 40), (40, 24), (24, 24))


def values(shape: tuple[int, ...], seed: int = 0) -> tuple[Array, list[Array]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape), [rng.standard_normal(shape) for _ in range(STEPS)]


@pytest.fixture
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


OUT_IN = MuonDimensionNumbers((1,), (0,))


def fork(
    spec: MuonSpec, weight: Array, gradients: list[Array], dims: MuonDimensionNumbers = OUT_IN
) -> Trajectory:
    """muon() on one torch-shaped leaf, in the dtype of the weight."""
    options = spec.muon_kwargs()
    optimizer = muon(RATE, **options, muon_weight_dimension_numbers=lambda _: {"w": dims})
    params: Any = {"w": weight}
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update({"w": gradient.astype(weight.dtype)}, state, params)
        params = jax.tree.map(lambda p, u: p + u, params, updates)
    mu = state.inner_states["muon"].inner_state[0].mu
    return Trajectory(np.asarray(params["w"]), np.asarray(mu["w"]))


def distance(one: Trajectory, other: Trajectory) -> float:
    pairs = ((one.weight, other.weight), (one.buffer, other.buffer))
    return max(float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in pairs)


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("shape", SHAPES)
def test_deepseek_v4_in_float64(shape: tuple[int, int]) -> None:
    weight, gradients = values(shape)
    printed = deepseek.trajectory(weight, gradients, RATE)
    assert distance(fork(preset("deepseek_v4"), weight, gradients), printed) <= limit("float64")


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize(
    "name", ["optax", "megatron", "megatron_rfc", "moonlight", "keller_jordan", "deepseek_v4"]
)
def test_every_preset_is_the_numpy_oracle_in_float64(name: str) -> None:
    spec = preset(name).replace(ns_dtype="float64", weight_decay=0.1)
    weight, gradients = values((24, 40))
    exact = numpy_muon.trajectory(spec, weight, gradients, RATE)
    assert distance(fork(spec, weight, gradients), exact) <= limit("float64")


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("way", ["spectral", "aol", "schatten"])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_every_preconditioning_is_the_numpy_oracle(way: str, shape: tuple[int, int]) -> None:
    spec = preset("optax").replace(preconditioning=way)
    weight, gradients = values(shape)
    exact = numpy_muon.trajectory(spec, weight, gradients[:5], RATE)
    assert distance(fork(spec, weight, gradients[:5]), exact) <= limit("float64")


@pytest.mark.usefixtures("_float64")
def test_component_splits_are_the_oracles_blocks() -> None:
    spec = preset("megatron_rfc").replace(ns_dtype="float64")
    heads, components = 3, (8, 4)
    weight, gradients = values((heads * sum(components), 20))
    blocks = mla_blocks(spec, heads, components)
    exact = numpy_muon.trajectory(spec, weight, gradients, RATE, blocks)
    dims = MuonDimensionNumbers((2,), (0, 1), component_splits=components)
    cut = (heads, sum(components), 20)
    ours = fork(spec, weight.reshape(cut), [g.reshape(cut) for g in gradients], dims)
    whole = Trajectory(ours.weight.reshape(weight.shape), ours.buffer.reshape(weight.shape))
    assert distance(whole, exact) <= limit("float64")
    assert distance(whole, numpy_muon.trajectory(spec, weight, gradients, RATE)) > 1e-3


TORCH = preset("keller_jordan").replace(ns_eps_mode="floor", ns_rounding="fused", weight_decay=0.1)


@pytest.mark.parametrize(("scale", "extra"), [("shape_scaling", 1.0), ("spectral", 0.2)])
def test_torch_optim_muon_within_its_own_noise(
    scale: str, extra: float, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = TORCH.replace(scale_mode=scale, extra_scale_factor=extra)
    weight, gradients = values((40, 24))
    weight, gradients = weight.astype(np.float32), [g.astype(np.float32) for g in gradients]
    torch = torch_muon.trajectory(spec, weight, gradients, RATE)

    def from_torch(other: Trajectory) -> float:
        return float(np.abs(other.weight - torch.weight).max())

    moved = [[np.nextafter(g, np.float32(way)) for g in gradients] for way in (-np.inf, np.inf)]
    noise = max(from_torch(torch_muon.trajectory(spec, weight, m, RATE)) for m in moved)
    ours = fork(spec, weight, gradients)
    other_rounding = fork(spec.replace(ns_rounding="elementwise"), weight, gradients)
    other_cast = fork(spec.replace(cast_before_norm=False), weight, gradients)
    with capsys.disabled():
        print(f"\ntorch.optim.Muon {scale}: fork {from_torch(ours):.1e}, its own noise {noise:.1e}")
    allowed = noise * limit("torch_muon_over_noise")
    assert from_torch(ours) <= allowed
    assert min(from_torch(other_rounding), from_torch(other_cast)) > allowed
    np.testing.assert_allclose(ours.buffer, torch.buffer, rtol=1e-5, atol=1e-6)


def test_adam_branch_is_the_numpy_oracle() -> None:
    with jax.enable_x64(True):
        for name in ("optax", "megatron"):
            spec = preset(name).replace(adam_weight_decay=0.1)
            weight, gradients = values((16,))
            state = numpy_muon.AdamState(weight, np.zeros(16), np.zeros(16))
            for count, gradient in enumerate(gradients):
                state = numpy_muon.adam_step(spec, state, gradient, RATE, count)
            optimizer: Any = muon(
                RATE, **spec.muon_kwargs(), muon_weight_dimension_numbers=lambda _: {"w": None}
            )
            params: Any = {"w": weight}
            fresh = optimizer.init(params)
            for gradient in gradients:
                updates, fresh = optimizer.update({"w": gradient}, fresh, params)
                params = jax.tree.map(lambda p, u: p + u, params, updates)
            assert np.abs(np.asarray(params["w"]) - state.weight).max() <= limit("float64")


def test_clipping_is_the_numpy_oracle() -> None:
    spec = preset("megatron").replace(clip_grad=1.0, ns_dtype="float64", adam_weight_decay=0.1)
    with jax.enable_x64(True):
        weight, gradients = values((24, 40))
        clipped = [numpy_muon.clip(spec, [g])[0] for g in gradients]
        assert all(abs(np.linalg.norm(g) - 1.0) < 1e-6 for g in clipped)
        exact = numpy_muon.trajectory(spec, weight, clipped, RATE)
        assert distance(fork(spec, weight, gradients), exact) <= limit("float64")


BLOCKS: dict[str, tuple[Callable[[], Blocks | None], list[int]]] = {
    "projections": (lambda: qkv_blocks(MuonSpec(), Qkv(2, 2, 4)), [16, 8, 8]),
    "heads": (lambda: qkv_blocks(MuonSpec(split_head=True), Qkv(2, 2, 4)), [4] * 8),
    "gate apart": (
        lambda: qkv_blocks(MuonSpec(split_attention_gate=True), Qkv(2, 2, 4, True)),
        [16, 16, 8, 8],
    ),
    "gate with query": (lambda: qkv_blocks(MuonSpec(), Qkv(2, 2, 4, True)), [32, 8, 8]),
    "gate and up": (lambda: fc1_blocks(MuonSpec(), 6), [6, 6]),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_cover_every_row_once(name: str) -> None:
    make, sizes = BLOCKS[name]
    blocks = make()
    assert blocks is not None
    assert [rows.size for rows in blocks] == sizes
    assert sorted(np.concatenate(list(blocks))) == list(range(sum(sizes)))


def test_fused_is_no_blocks_and_groups_interleave() -> None:
    fused = MuonSpec(split_qkv=False, split_linear_fc1=False)
    assert qkv_blocks(fused, Qkv(2, 2, 4)) is None
    assert fc1_blocks(fused, 6) is None
    query, key, value = component_rows(2, (2, 1, 1))
    assert [list(query), list(key), list(value)] == [[0, 1, 4, 5], [2, 6], [3, 7]]


def test_what_a_reference_cannot_do_is_refused() -> None:
    weight, gradients = values((4, 4))
    with pytest.raises(SpecError, match="bias_correction=False, got True"):
        torch_muon.trajectory(MuonSpec(), weight, gradients, RATE)
    with pytest.raises(SpecError, match="row blocks"):
        numpy_muon.trajectory(MuonSpec(), weight, gradients, RATE, [np.array([0, 1, 1])])
