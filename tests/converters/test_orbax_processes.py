"""Two processes write one checkpoint, the same to the bit as one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from converters.orbax import runtime
from converters.orbax.reader import open_saved

runtime.start()
ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "tests/data/megatron/dense_td"
SECONDS = 180


def command(*words: object) -> list[str]:
    code = "from converters.cli import main; main()"
    return [sys.executable, "-c", code, "megatron2orbax", str(CHECKPOINT), *map(str, words)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("processes")
    together = [
        subprocess.Popen(
            command(
                *("--out", folder / "two", "--process-count", 2, "--process-index", index),
                *("--coordinator", f"localhost:{address}"),
            ),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for address in [free_port()]
        for index in (1, 0)
    ]
    alone = subprocess.run(
        command("--out", folder / "one"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert alone.returncode == 0, alone.stderr
    said = []
    for process in together:
        out, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, errors
        said.append(out.strip())
    assert said == ["", str(folder / "two/20/items")]
    return folder / "one", folder / "two"


def test_both_wrote_a_part(results: tuple[Path, Path]) -> None:
    for index in (0, 1):
        part = results[1] / f"20/items/ocdbt.process_{index}"
        assert sum(file.stat().st_size for file in part.rglob("*") if file.is_file()) > 10_000


def test_every_leaf_is_the_same(results: tuple[Path, Path]) -> None:
    one, two = (open_saved(place) for place in results)
    assert one.tensors.keys() == two.tensors.keys()
    assert (one.empty, one.lists, one.metadata) == (two.empty, two.lists, two.metadata)
    for path, tensor in one.tensors.items():
        other = two.tensors[path]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        assert tensor.read().tobytes() == other.read().tobytes(), path


def test_orbax_files_are_the_same(results: tuple[Path, Path]) -> None:
    for file in ("_METADATA", "_sharding", "array_metadatas/process_0"):
        one, two = ((place / "20/items" / file).read_text() for place in results)
        assert one == two, file


def test_the_reports_list_the_same_hashes(results: tuple[Path, Path]) -> None:
    one, two = (json.loads((place / "conversion.json").read_text()) for place in results)
    assert one["tensors"] == two["tensors"]
    assert all(row["sha256"] for row in two["tensors"])


def test_nothing_else_remains(results: tuple[Path, Path]) -> None:
    assert {p.name for p in results[1].parent.iterdir()} == {"one", "two"}
    assert {p.name for p in results[1].iterdir()} == {"20", "conversion.json"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--process-count", 2, "--process-index", 2, "--coordinator", "x:1"), "is not below"),
        (("--process-count", 2), "needs --coordinator"),
    ],
)
def test_numbers_that_do_not_fit(tmp_path: Path, words: tuple[object, ...], message: str) -> None:
    done = subprocess.run(
        command("--out", tmp_path / "out", *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
