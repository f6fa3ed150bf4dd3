"""Files that are missing, cut, foreign, exchanged, or have a flipped bit."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.converters import hostile
from tests.converters.hostile import DATA

from .case import COMMON, DISTCP, FIRST, HEAD, MOMENTUM, SECOND, Case, Damage

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def _with(file: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / file
        path.write_bytes(change(path.read_bytes()))

    return damage


def _to_folder(file: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).mkdir()

    return damage


FILES = {
    # file: (sample, message where it is missing)
    ".metadata": ("dense_td", r"\.metadata"),
    "metadata.json": ("dense_td", r"metadata\.json"),
    DISTCP: ("dense_td", r"__0_0\.distcp: missing, it holds .*weight"),
    "common.pt": ("v0.18.2_dense_td", r"common\.pt: missing"),
}


def _file_cases(file: str) -> list[Case]:
    sample, missing = FILES[file]
    name = file.replace(".", r"\.")
    noise = random.Random(file).randbytes(2000)
    return [
        Case(f"{file} missing", lambda f: (f / file).unlink(), missing, sample),
        Case(f"{file} a folder", _to_folder(file), name, sample),
        Case(f"{file} empty", _with(file, lambda _: b""), name, sample),
        Case(f"{file} half", _with(file, lambda d: d[: len(d) // 2]), name, sample),
        Case(f"{file} one byte short", _with(file, lambda d: d[:-1]), name, sample),
        Case(f"{file} longer", _with(file, lambda d: d + b"\0" * 8), name, sample),
        Case(f"{file} shifted", _with(file, lambda d: b"\0" * 8 + d), name, sample),
        Case(f"{file} noise", _with(file, lambda _: noise), name, sample),
        Case(f"{file} pointer of git lfs", _with(file, lambda _: POINTER), "git lfs pull", sample),
        Case(
            f"{file} pointer of git annex",
            _with(file, lambda _: b"/annex/objects/MD5E-s1--0"),
            "git annex get",
            sample,
        ),
    ]


def _swap(folder: Path, one: str = DISTCP, other: str = "__1_0.distcp") -> None:
    (folder / one).rename(folder / "aside")
    (folder / other).rename(folder / one)
    (folder / "aside").rename(folder / other)


def _from_other(sample: str, iteration: str, file: str = DISTCP) -> Damage:
    return lambda folder: shutil.copy(DATA / sample / iteration / file, folder / file)


_FILES = [
    *(case for file in FILES for case in _file_cases(file)),
    Case(
        "a file that no entry is in",
        lambda f: shutil.copy(f / DISTCP, f / "__7_0.distcp"),
        r"__7_0\.distcp: \.metadata does not mention",
    ),
    *(
        Case(f"ranks exchanged, {name}", _swap, r"__[01]_0\.distcp: .*another save|cut short", name)
        for name in ("tp2_td", "pp2_td", "moe_ep2_td", "muon_layerwise_bf16_dp2_td")
    ),
    Case(
        "files of one rank exchanged",
        lambda f: _swap(f, DISTCP, "__0_1.distcp"),
        r"__0_[01]\.distcp",
        "v0.16.1_dense_td",
    ),
    Case(
        "values of the next iteration",
        _from_other("dense_td", "iter_0000021"),
        "iter_0000020: the common state inside is of iteration 21",
    ),
    Case(
        "values of another run",
        _from_other("qknorm_td", "iter_0000020"),
        r"__0_0\.distcp: .* another save",
    ),
    Case(
        "names of another run",
        _from_other("qknorm_td", "iter_0000020", ".metadata"),
        r"__0_0\.distcp: .*(cut short|another save)",
    ),
    Case(
        "one rank of another layout",
        _from_other("pp2_td", "iter_0000020", "__1_0.distcp"),
        r"__1_0\.distcp",
        "tp2_td",
    ),
    Case(
        "zarr",
        _with("metadata.json", lambda _: b'{"sharded_backend": "zarr"}'),
        r"metadata\.json: format 'zarr'.*--ckpt-format torch_dist",
    ),
    Case("no backend", _with("metadata.json", lambda _: b"{}"), r"metadata\.json: not the desc"),
    Case("a list", _with("metadata.json", lambda _: b"[1]"), r"metadata\.json: not the desc"),
    Case(
        "torch_dist without its description",
        lambda f: (f / "metadata.json").unlink(),
        r"common state|metadata\.json is missing|common\.pt",
        "v0.18.2_dense_td",
    ),
]

# Bits. A flipped bit in a tensor keeps every size, only the sum tells.


def _flip(key: str, part: float) -> Damage:
    def damage(folder: Path) -> None:
        file, start, length = hostile.place_of(folder, key)
        data = bytearray(file.read_bytes())
        # Storages come after the program: the middle of the entry is inside the numbers.
        data[start + int(length * part)] ^= 1
        file.write_bytes(data)

    return damage


def _flip_at(folder: Path, key: str, at: int) -> None:
    file, start, length = hostile.place_of(folder, key)
    data = bytearray(file.read_bytes())
    data[start + at if at >= 0 else start + length + at] ^= 1
    file.write_bytes(data)


_BITS = [
    *(
        Case(f"bit of {key} at {part}", _flip(key, part), rf"{name}.*damaged", sample)
        for sample, key, name in (
            ("dense_td", HEAD, r"output_layer\.weight"),
            ("dense_td", MOMENTUM, r"momentum_buffer\.decoder"),
            ("dense_td", FIRST, r"exp_avg\.output_layer"),
            ("dense_td", SECOND, r"exp_avg_sq\.output_layer"),
            ("bf16_td", f"optimizer.state.fp32_param.{HEAD}", r"fp32_param\.output_layer"),
            ("bf16_td", "embedding.word_embeddings.weight", "word_embeddings"),
        )
        for part in (0.4, 0.6)
    ),
    Case("bit of the common state", _flip(COMMON, 0.4), "common_state.*damaged"),
    Case("bit of an archive's first mark", _flip(HEAD, 0.0), r"output_layer\.weight.*damaged"),
    Case(
        "bit of an entry's own name",
        lambda f: _flip_at(f, HEAD, 34),
        r"output_layer\.weight.*damaged",
    ),
    Case("bit of a program", lambda f: _flip_at(f, HEAD, 90), r"output_layer\.weight.*damaged"),
    Case("bit of the directory", lambda f: _flip_at(f, HEAD, -40), r"output_layer\.weight"),
    Case("bit of the end mark", lambda f: _flip_at(f, HEAD, -22), r"output_layer\.weight.*damaged"),
]

CASES = (*_FILES, *_BITS)
