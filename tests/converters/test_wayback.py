"""Megatron to MaxText and back: the same bytes, and the counts of a run that went on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from converters.cli import main
from converters.megatron.open import open_source
from converters.orbax import runtime
from converters.orbax.reader import open_saved
from converters.orbax.writer import write_state
from converters.source import State
from converters.target import TargetState
from tests.converters.states import state_of

runtime.start()
DATA = Path(__file__).parents[1] / "data"
MEGATRON = DATA / "megatron"
# Folder, and the options that its conversion needs.
ROUND_TRIPS = (
    ("dense_td", ()),
    ("dense_td", ("--no-scan",)),
    ("dense_td", ("--maxtext-version", "0.2.3")),
    ("dense_td", ("--maxtext-version", "0.2.3", "--no-scan")),
    ("qknorm_td", ()),
    ("bf16_td", ()),
    ("tp2_td", ("--spec", "allow_blockwise_tp=true")),
    ("mla_td", ()),
    ("pp2_td", ()),
    ("moe_ep2_td", ()),
    ("muon_layerwise_bf16_dp2_td", ()),
    ("dense_legacy", ()),
    ("bf16_legacy", ()),
    ("adam_distopt_fully_reshardable_td", ()),
    ("adam_distopt_fully_reshardable_td", ("--maxtext-version", "0.2.3", "--no-scan")),
    ("twins/adam_distopt_legacy", ()),
)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def files_below(folder: Path) -> list[Path]:
    return sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wayback") / "orbax"
    assert run("megatron2orbax", MEGATRON / "dense_td", "--out", out).exit_code == 0
    return out


@pytest.mark.parametrize(("name", "words"), ROUND_TRIPS, ids=lambda v: "".join(v) or "scan")
def test_there_and_back_is_the_same_to_the_byte(
    tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    result = run("megatron2orbax", MEGATRON / name, "--out", there, *words)
    assert result.exit_code == 0, result.output
    result = run("orbax2megatron", there, "--like", MEGATRON / name, "--out", back)
    assert result.exit_code == 0, result.output
    origin = open_source(MEGATRON / name).folder
    files = files_below(origin)
    assert files_below(back / origin.name) == files
    for file in files:
        assert (back / origin.name / file).read_bytes() == (origin / file).read_bytes(), file


def test_a_run_that_went_on_keeps_its_own_counts(done: Path, tmp_path: Path) -> None:
    """What MaxText saves has no conversion.json: layout and scan are seen in the tree."""
    state = state_of(open_saved(done))

    def further(leaf, by):  # type: ignore[no-untyped-def]
        array = (leaf.build() + by).astype(leaf.dtype)
        return replace(leaf, build=lambda: array)

    state.tree["step"] = further(state.tree["step"], 9)
    kernel = state.tree["params"]["params"]["token_embedder"]
    kernel["embedding"] = further(kernel["embedding"], 1.0)
    write_state(replace(state, step=30), tmp_path)
    result = run(
        *("orbax2megatron", tmp_path, "--like", MEGATRON / "dense_td", "--out", tmp_path / "back")
    )
    assert result.exit_code == 2, "into the folder of steps"
    back = tmp_path.parent / f"{tmp_path.name}-back"
    words = ("--like", MEGATRON / "dense_td", "--out", back, "--json", "-")
    result = run("orbax2megatron", tmp_path, *words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["step"] == 30
    new, old = open_source(back), open_source(MEGATRON / "dense_td")
    assert (new.run.iteration, new.folder.name) == (30, "iter_0000030")
    for key, tensor in new.tensors.items():
        shift = np.float32(key == ("embedding.word_embeddings.weight", State.WEIGHT))
        assert np.array_equal(tensor.load(), old.tensors[key].load() + shift), key


@pytest.mark.parametrize(
    ("like", "words", "message"),
    [
        ("qknorm_td", (), "is missing: not a state of"),
        ("dense_td", ("--no-scan",), "is missing"),
        ("nothing", (), "no such folder"),
        ("dense_td", ("--iteration", 5), "5"),
        ("bf16_td", ("--maxtext-version", "7"), "unknown MaxText version"),
    ],
)
def test_what_does_not_fit_is_refused(
    done: Path, tmp_path: Path, like: str, words: tuple[object, ...], message: str
) -> None:
    out = tmp_path / "out"
    result = run("orbax2megatron", done, "--like", MEGATRON / like, "--out", out, *words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_weights_alone_make_no_checkpoint_with_an_optimizer(tmp_path: Path) -> None:
    like, there = MEGATRON / "dense_td", tmp_path / "there"
    assert run("megatron2orbax", like, "--out", there, "--no-optimizer").exit_code == 0
    result = run("orbax2megatron", there, "--like", like, "--out", tmp_path / "back")
    assert result.exit_code == 2, result.output
    assert "has weights only" in result.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"there"}


def test_nan_is_refused(done: Path, tmp_path: Path) -> None:
    state: TargetState = state_of(open_saved(done))
    leaf = state.tree["params"]["params"]["token_embedder"]["embedding"]
    spoilt = np.full(leaf.shape, np.nan, leaf.dtype)
    state.tree["params"]["params"]["token_embedder"]["embedding"] = replace(
        leaf, build=lambda: spoilt
    )
    (tmp_path / "steps").mkdir()
    write_state(state, tmp_path / "steps")
    words = ("--like", MEGATRON / "dense_td", "--out", tmp_path / "out")
    result = run("orbax2megatron", tmp_path / "steps", *words)
    assert result.exit_code == 2, result.output
    assert "word_embeddings" in result.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"steps"}


def test_a_leaf_more_is_refused(done: Path, tmp_path: Path) -> None:
    state = state_of(open_saved(done))
    extra = replace(state.tree["step"], path=("params", "params", "extra"))
    state.tree["params"]["params"]["extra"] = extra
    (tmp_path / "steps").mkdir()
    write_state(state, tmp_path / "steps")
    words = ("--like", MEGATRON / "dense_td", "--out", tmp_path / "out")
    result = run("orbax2megatron", tmp_path / "steps", *words)
    assert result.exit_code == 2, result.output
    assert "params/params/extra has no place" in result.stderr


def test_never_over_another_folder(done: Path, tmp_path: Path) -> None:
    like = Path(shutil.copytree(MEGATRON / "dense_td", tmp_path / "ckpt"))
    for out in (like, like / "iter_0000021", done, done / "20"):
        result = run("orbax2megatron", done, "--like", like, "--out", out, "--force")
        assert result.exit_code == 2, result.output
        assert "source" in result.stderr
