"""``muon-check routing`` against real released MaxText, migrated and as released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from checks.cli import main
from tests.real.maxtext.trainer import built
from tests.real.maxtext.trees import migrated, released, shared_folder

DATA = Path(__file__).parents[1] / "data" / "megatron"
ATTENTION = "decoder/layers/self_attention/{}/kernel"

pytestmark = pytest.mark.real


def run(checkpoint: str, maxtext: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    command = ["routing", str(DATA / checkpoint), "--maxtext", str(maxtext)]
    command += ["--python", str(built("maxtext")), "--json", "-", *words]
    result = CliRunner().invoke(main, command)
    return result.exit_code, json.loads(result.stdout or "{}"), result.stderr


def test_a_migrated_maxtext_routes_as_megatron_did(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tree = migrated(shared_folder(tmp_path_factory), "0.2.5", "megatron")
    code, report, errors = run("mla_run", tree, "--model-config", "scan_layers=false")
    assert code == 0, (errors, [row for row in report["rows"] if row["differences"]])
    assert report["passed"]
    assert (report["version"], report["status"]) == ("0.2.5", "migrated")
    assert report["optimizer"].endswith("optax_muon._muon")
    assert {row["maxtext"]["optimizer"] for row in report["rows"]} == {"muon", "adam"}
    joined = next(r for r in report["rows"] if r["path"].endswith("layers_0/mlp/wi_0/kernel"))
    assert joined["maxtext"]["matrices"] == [{"fan_out": 256, "fan_in": 64, "count": 1}]


def test_a_released_linen_maxtext_shows_what_it_does_otherwise() -> None:
    code, report, errors = run("dense_td", released("0.2.3"))
    assert code == 1, errors
    assert (report["version"], report["status"]) == ("0.2.3", "not migrated")
    assert any("does not know muon_nesterov" in note for note in report["notes"])
    found = {row["path"]: row["differences"] for row in report["rows"] if row["differences"]}
    assert found[ATTENTION.format("query")] == ["scale", "rate"]
    assert found[ATTENTION.format("key")] == ["scale"]
    assert found["decoder/layers/mlp/wi_0/kernel"] == ["matrices"]
    assert found["decoder/decoder_norm/scale"] == ["decay"]
    assert "token_embedder/embedding" not in found


def test_a_maxtext_that_fails_says_why() -> None:
    code, report, errors = run(
        "dense_td", released("0.2.5"), "--model-config", "decoder_block=nonsense"
    )
    assert (code, report) == (2, {})
    assert "cannot build the model" in errors
    assert "nonsense" in errors
    assert "Traceback" not in errors
