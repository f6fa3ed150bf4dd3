"""``python __main__.py OUT base.yml key=value ...``: with MaxText on the module search path.

MaxText's own ``train_compile`` runs; OUT receives ``step.hlo`` and ``facts.json``: memory per chip
in bytes, versions and the package that was compiled.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def main(out: Path, argv: list[str]) -> None:
    from maxtext.trainers.pre_train import train_compile

    compile_step = train_compile.jit_and_compile

    def compile_and_keep(*arguments: Any, **keywords: Any) -> Any:
        compiled = compile_step(*arguments, **keywords)
        (out / "step.hlo").write_text(compiled.as_text())
        package = str(Path(train_compile.__file__).parents[3])
        facts = {"package": package, "memory": _memory(compiled), "versions": _versions()}
        (out / "facts.json").write_text(json.dumps(facts, indent=1))
        return compiled

    train_compile.jit_and_compile = compile_and_keep
    train_compile.main(["train_compile", *argv])


def _memory(compiled: Any) -> dict[str, int]:
    stats = compiled.memory_analysis()
    names = ("argument_size", "temp_size", "alias_size", "output_size", "peak_memory")
    return {name: int(getattr(stats, f"{name}_in_bytes")) for name in names}


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("jax", "jaxlib", "libtpu", "optax")}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
