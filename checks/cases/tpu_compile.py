"""Rung: the TPU's own compiler takes the migrated train step. No TPU is needed."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.result import Outcome, Rung
from checks.setting import Case, Setting
from checks.tpu.compiled import TOPOLOGY, Compiled, compile_step, has_libtpu
from checks.training.errors import RunError
from checks.training.interpreter import interpreter
from checks.training.tree import Tree, migrated_copy, muon_migrate, open_tree

NAME = "tpu_compile"
TITLE = f"the train step compiles for {TOPOLOGY}, and what it needs there"
LAYERS = {"scanned": True, "unscanned": False}
MIGRATED, RELEASED = "migrated", "not migrated"
_MEBI = 2**20

Results = Mapping[tuple[str, str], Compiled]


def run(setting: Setting) -> Rung:
    """Compile ``setting.maxtext`` with and without the migration, scanned and unscanned."""
    began = time.monotonic()
    if setting.maxtext is None:
        return _not_run("it needs a MaxText: name one with --maxtext PATH")
    try:
        named = open_tree(setting.maxtext)
        python = interpreter(setting.python, named)
    except RunError as error:
        return _not_run(str(error))
    if not has_libtpu(python):
        return _not_run(
            f"{python} has no libtpu: install the toolkit's extra [tpu] there (pip install "
            "libtpu; it needs no TPU), or name another with --python"
        )
    with tempfile.TemporaryDirectory() as scratch:
        rung = _compile(setting, named, python, Path(scratch))
    return replace(rung, seconds=time.monotonic() - began)


CASE = Case(NAME, TITLE, (), run)


def _not_run(reason: str) -> Rung:
    return Rung(NAME, TITLE, Outcome.NOT_RUN, reason=reason)


def _compile(setting: Setting, named: Tree, python: Path, scratch: Path) -> Rung:
    trees, notes = _both(named, scratch)
    results: dict[tuple[str, str], Compiled] = {}
    problems: dict[tuple[str, str], str] = {}
    for checkout, tree in trees.items():
        for layers, scanned in LAYERS.items():
            setting.progress(f"{NAME}: {checkout}, {layers}: takes a minute")
            folder = scratch / f"{checkout} {layers}".replace(" ", "-")
            try:
                results[checkout, layers] = compile_step(
                    tree, python, folder, {"scan_layers": scanned}
                )
            except RunError as error:
                problems[checkout, layers] = str(error)
    return judge(results, problems, notes)


def _both(named: Tree, scratch: Path) -> tuple[dict[str, Tree], tuple[str, ...]]:
    """The checkout with and without the migration; neither copy touches it."""
    if named.status != "migrated":
        copy = migrated_copy(named, scratch / "with")
        return {MIGRATED: copy, RELEASED: named}, copy.notes
    without = scratch / "without"
    for name in ("maxtext", "MaxText", "dependencies"):
        if (named.base / name).is_dir():
            ignored = shutil.ignore_patterns("assets", "__pycache__")
            shutil.copytree(named.base / name, without / name, ignore=ignored)
    try:
        muon_migrate("revert", str(without))
        return {MIGRATED: named, RELEASED: open_tree(without)}, named.notes
    except RunError as error:
        return {MIGRATED: named}, (*named.notes, f"nothing to compare with: {error}")


def judge(
    results: Results, problems: Mapping[tuple[str, str], str], notes: tuple[str, ...]
) -> Rung:
    """Failed where the migrated step does not compile; what else there is to know is shown."""
    broken = [f"{layers}: {why}" for (who, layers), why in problems.items() if who == MIGRATED]
    others = [f"{who}, {at}: {why}" for (who, at), why in problems.items() if who != MIGRATED]
    versions: Mapping[str, str] = next(iter(results.values())).versions if results else {}
    rows = [_row(checkout, layers, one) for (checkout, layers), one in results.items()]
    return Rung(
        NAME,
        TITLE,
        Outcome.FAILED if broken else Outcome.PASSED,
        reason="\n".join(broken),
        notes=(*notes, *others, *_remarks(results)),
        details={"compiled": rows, "compiler": versions},
    )


def _row(checkout: str, layers: str, one: Compiled) -> dict[str, Any]:
    inside = ", ".join(f"{count} {kind}" for kind, count in one.collectives.items())
    return {
        "train step": f"{layers}, {checkout}",
        "peak, MiB a chip": round(one.memory["peak_memory"] / _MEBI, 1),
        "state and batch": round(one.memory["argument_size"] / _MEBI, 1),
        "temporary": round(one.memory["temp_size"] / _MEBI, 1),
        "Newton-Schulz loops": len(one.loops),
        "collectives in them": inside or ("none" if one.loops else "no loop: unrolled"),
    }


def _remarks(results: Results) -> Iterator[str]:
    for (checkout, layers), one in results.items():
        if not one.loops:
            yield f"{checkout}, {layers}: no Newton-Schulz loop was found in the program: unrolled"
        for loop in one.loops:
            if loop.collectives and checkout == MIGRATED:
                kinds = ", ".join(f"{count} {kind}" for kind, count in loop.collectives.items())
                places = "; ".join(loop.names)
                yield f"{layers}: {kinds} in each turn of {loop.body}, from {places}"
