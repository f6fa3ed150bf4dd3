"""The fork on MaxText-shaped arrays against the real TensorParallelMuon of two Megatron-Cores."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from checks.references import numpy_muon
from checks.references.matrices import Array, Blocks, qkv_blocks
from checks.tolerances import limit
from muon_fork import muon
from muon_fork.coefficients import expand_coefficients
from muon_fork.spec import MuonSpec

from .megatron_cases import SHAPES, STEPS, Options, key, options, spec_for, values

ROOT = Path(__file__).parents[2]
VERSIONS = {"0.19.2": (), "0.17.1": ("megatron-older",)}
Results = dict[str, Array]

pytestmark = pytest.mark.real


def start(file: Path, ns_dtype: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.real.megatron_runs", str(file), ns_dtype, *words]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], file: Path) -> Results:
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    with np.load(file) as arrays:
        return dict(arrays)


def older_megatron() -> Path:
    """Folder beside the toolkit's packages that holds the older Megatron-Core."""
    folders = [Path(entry) for entry in sys.path if entry.endswith("site-packages")]
    found = [up / name for f in folders for up in f.parents for name in VERSIONS["0.17.1"]]
    for folder in found:
        if folder.is_dir():
            return folder
    raise AssertionError("megatron-core 0.17.1 is missing: run `make setup`")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Results by Megatron-Core version and precision; each runs in a process of its own."""
    folder = tmp_path_factory.mktemp("megatron")
    jobs = {
        "0.19.2": ("float32",),
        "0.17.1": ("float32", str(older_megatron())),
        "0.19.2 bfloat16": ("bfloat16",),
        "0.19.2 bfloat16 up": ("bfloat16", "--up"),
        "0.19.2 bfloat16 down": ("bfloat16", "--down"),
    }
    files = {name: folder / f"{name}.npz" for name in jobs}
    started = {name: start(files[name], *words) for name, words in jobs.items()}
    return {name: finish(process, files[name]) for name, process in started.items()}


@pytest.fixture(scope="module")
def forks() -> dict[str, Results]:
    """The fork's results by Newton-Schulz dtype."""
    return {dtype: train_all(dtype) for dtype in ("float32", "bfloat16")}


def train_all(ns_dtype: str) -> Results:
    arrays: Results = {}
    for row in options(ns_dtype):
        arrays |= train(row)
    return arrays


def train(row: Options) -> Results:
    """One muon() over the leaves of all shapes, for every step."""
    given = {shape.name: values(row, shape) for shape in SHAPES}
    params: Any = {s.name: s.leaves(given[s.name][0]) for s in SHAPES}
    state: Any = make_optimizer(row.spec, row.learning_rate).init(params)
    step = compiled_step(static_part(row.spec))
    for number in range(STEPS):
        gradient = {s.name: s.leaves(given[s.name][1][number]) for s in SHAPES}
        traced = (row.learning_rate, row.spec.extra_scale_factor, row.spec.weight_decay)
        params, state = step(params, state, gradient, traced)
    mu = state.inner_states["muon"].inner_state[0].mu
    arrays: Results = {}
    for shape in SHAPES:
        for leaf in shape.dims:
            arrays[key(row, shape, f"weight/{leaf}")] = np.asarray(params[shape.name][leaf])
            arrays[key(row, shape, f"buffer/{leaf}")] = np.asarray(mu[shape.name][leaf])
    return arrays


def make_optimizer(spec: MuonSpec, learning_rate: Any, **changes: Any) -> Any:
    """``split_qkv`` is in the dimension numbers, so one optimizer holds fused and split."""
    options = spec.muon_kwargs() | changes
    rows = expand_coefficients(spec.coefficient_type, spec.num_ns_steps)
    if spec.num_ns_steps > 5 or spec.nesterov:
        # A row per step also where one triple would do: then one program serves every type.
        options["ns_coeffs"] = rows
    dims = {shape.name: shape.dims for shape in SHAPES}
    return muon(learning_rate, **options, muon_weight_dimension_numbers=lambda _: dims)


def static_part(spec: MuonSpec) -> MuonSpec:
    """The spec without what a compiled step takes as arguments."""
    return spec.replace(coefficient_type="quintic", extra_scale_factor=1.0, weight_decay=0.0)


@functools.cache
def compiled_step(spec: MuonSpec) -> Callable[..., Any]:
    """A step of every spec with this static part: the coefficients come with the state."""

    @jax.jit
    def step(params: Any, state: Any, gradient: Any, traced: Any) -> Any:
        rate, extra, decay = traced
        optimizer = make_optimizer(spec, rate, extra_scale_factor=extra, weight_decay=decay)
        updates, state = optimizer.update(gradient, state, params)
        return jax.tree.map(lambda p, u: p + u, params, updates), state

    return step


def differences(results: Results, fork: Results, ns_dtype: str) -> dict[str, float]:
    """Max |difference| by combination and array, over the leaves."""
    worst: dict[str, float] = {}
    for row in options(ns_dtype):
        for shape in SHAPES:
            for what in ("weight", "buffer"):
                name = key(row, shape, what)
                for leaf, expected in shape.leaves(results[name]).items():
                    distance = max_difference(fork[f"{name}/{leaf}"], expected)
                    worst[name] = max(worst.get(name, 0.0), distance)
    return worst


def max_difference(array: Array, other: Array) -> float:
    """Infinite where either is not finite: NaN compares as nothing."""
    distance = float(np.abs(array.astype(np.float64) - other).max())
    return distance if np.isfinite(distance) else float("inf")


def report(capsys: pytest.CaptureFixture[str], **figures: Any) -> None:
    with capsys.disabled():
        print("\n" + json.dumps(figures))


@pytest.mark.parametrize("version", VERSIONS)
def test_fork_is_megatron_in_float32(
    version: str,
    runs: dict[str, Results],
    forks: dict[str, Results],
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = runs[version]
    assert str(results["version"]) == version
    worst = differences(results, forks["float32"], "float32")
    combinations = {name.rpartition("/")[0] for name in worst}
    assert len(combinations) >= 500
    where = max(worst, key=lambda name: worst[name])
    report(
        capsys, megatron=version, combinations=len(combinations), worst=worst[where], where=where
    )
    assert worst[where] <= limit("fork_vs_megatron_fp32")


def test_bfloat16_is_within_megatrons_own_noise(
    runs: dict[str, Results],
    forks: dict[str, Results],
    capsys: pytest.CaptureFixture[str],
) -> None:
    exact = runs["0.19.2 bfloat16"]
    moved = [runs[f"0.19.2 bfloat16 {way}"] for way in ("up", "down")]
    fork = differences(exact, forks["bfloat16"], "bfloat16")
    weights = [name for name in fork if name.endswith("weight")]
    ours = np.array([fork[name] for name in weights])
    noise = np.array([[max_difference(exact[n], run[n]) for n in weights] for run in moved])
    figures = {
        "worst": float(ours.max() / noise.max()),
        "mean": float(ours.mean() / noise.mean()),
    }
    report(capsys, fork=float(ours.max()), noise=float(noise.max()), over_noise=figures)
    assert 0 < noise.max() < 0.01
    assert max(figures.values()) <= limit("bf16_over_noise")
    buffers = [fork[name] for name in fork if name.endswith("buffer")]
    assert max(buffers) <= limit("fork_vs_megatron_fp32")


def test_numpy_oracle_is_megatron(
    runs: dict[str, Results], capsys: pytest.CaptureFixture[str]
) -> None:
    worst, where = 0.0, ""
    for row in list(options())[::3]:
        for shape in SHAPES:
            weight, gradients = values(row, shape)
            spec = spec_for(row, shape)
            blocks: Blocks | None = qkv_blocks(spec, shape.qkv) if shape.qkv else None
            end = numpy_muon.trajectory(spec, weight, gradients, row.learning_rate, blocks)
            for what, exact in (("weight", end.weight), ("buffer", end.buffer)):
                name = key(row, shape, what)
                distance = max_difference(runs["0.19.2"][name], exact)
                worst, where = max((worst, where), (distance, name))
    report(capsys, numpy_vs_megatron=worst, where=where)
    assert worst <= limit("megatron_fp32_vs_exact")
