"""``muon-check config``: the run that conversion continues, and every way to miss it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from checks.cli import main
from checks.config.defaults import ABSENT, EARLIER, RELEASES, defaults_of
from checks.config.given import ConfigError, read_given, same
from checks.config.keys import IRRELEVANT, KEYS, OPEN
from checks.config.row import Row
from checks.config.table import Report, compare
from checks.training.maxtext import PINNED
from converters.maxtext.plan import Options, plan_target
from converters.maxtext.versions import VERSIONS
from converters.source import Source
from tests.converters.megatron_models import MODELS, source
from tests.converters.plans import changed
from tests.real.maxtext.trees import RELEASES as WHEELS
from tests.real.maxtext.trees import released

DATA = Path(__file__).parents[1] / "data" / "megatron"
DENSE = DATA / "dense_td"
# What these families compute in MaxText, where the models of the tests leave it open.
COMPUTED_ALIKE = {
    "gemma2": {"swiglu": False},
    "gemma3": {"swiglu": False},
    "deepseek2": {"moe_router_pre_softmax": True},
}
NOT_COMPARED = IRRELEVANT | {"dataset_type", "enable_dropout", "sparse_matmul", "megablox"}


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["config", *map(str, arguments)])


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The comparison of a source with its own conversion's configuration, changed."""

    def compare_with(origin: Source, *words: str, **changes: Any) -> Report:
        monkeypatch.setattr("checks.config.table.open_source", lambda _: origin)
        config = dict(plan_target(origin, Options()).maxtext_config)
        config = {**config, "load_full_state_path": "x", **changes}
        file = tmp_path / "run.yml"
        kept = {k: _plain(v) for k, v in config.items() if v is not OPEN}
        file.write_text(yaml.safe_dump(kept))
        return compare(tmp_path, [str(file), *words], None, None)

    return compare_with


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def found(report: Report) -> list[Row]:
    return [row for row in report.rows if row.found]


@pytest.mark.parametrize("model", MODELS)
def test_what_the_conversion_sets_agrees(compared: Any, model: str) -> None:
    report = compared(changed(source(MODELS[model]), **COMPUTED_ALIKE.get(model, {})))
    assert not found(report)
    assert report.passed


def test_documents_are_kept_apart_as_the_run_did(compared: Any) -> None:
    origin = changed(source(MODELS["llama2"]), reset_attention_mask=True)
    assert plan_target(origin, Options()).maxtext_config["packing"] is True
    assert not found(compared(origin))
    (row,) = found(compared(origin, packing=False))
    assert (row.megatron, row.remedy) == ("reset_attention_mask=True", "packing=True")


@pytest.mark.parametrize("model", MODELS)
def test_every_key_of_the_conversion_has_a_row(model: str) -> None:
    known = {key.name for key in KEYS} | IRRELEVANT
    for version in VERSIONS:
        for layout in version.layouts:
            options = Options(version.name, layout=layout)
            assert set(plan_target(source(MODELS[model]), options).maxtext_config) <= known


def test_the_keys_that_training_pins_are_compared() -> None:
    neutral = {key.name: key.neutral for key in KEYS}
    for key, value in PINNED.items():
        if key not in NOT_COMPARED and neutral[key] is not OPEN:
            assert same(neutral[key], value), key
    assert set(PINNED) <= {*neutral, *NOT_COMPARED}


@pytest.mark.parametrize("release", WHEELS)
def test_defaults_are_those_of_the_release(release: str) -> None:
    base = yaml.safe_load((released(release) / "maxtext/configs/base.yml").read_text())
    names = {key.name for key in KEYS}
    ours = {key: _plain(value) for key, value in defaults_of(release).items()}
    assert ours == {key: value for key, value in base.items() if key in names}
    assert set(RELEASES) == set(WHEELS)
    assert all(value is not ABSENT for value in ours.values())
    assert release not in EARLIER or EARLIER[release]


@pytest.mark.parametrize(
    ("model", "change", "topic"),
    [
        ("llama2", {"normalization_layer_epsilon": 1e-5}, "norm eps"),
        ("llama2", {"rope_max_timescale": 500000}, "rotary embedding"),
        ("llama2", {"rope_type": "llama3.1"}, "rotary embedding"),
        ("kimi_k2", {"rope_interleave": False}, "rotary embedding"),
        ("kimi_k2", {"rope_factor": 40}, "rotary embedding"),
        ("qwen3", {"use_qk_norm": False}, "qk-norm"),
        ("llama2", {"use_qk_norm": True}, "qk-norm"),
        ("llama2", {"mlp_activations": ["gelu", "linear"]}, "activations"),
        ("llama2", {"logits_via_embedding": True}, "tied head"),
        ("llama2", {"final_logits_soft_cap": 30.0}, "tied head"),
        ("llama2", {"vocab_size": 250}, "vocabulary padding in the softmax"),
        ("llama2", {"z_loss_multiplier": 1e-4}, "z-loss"),
        ("mixtral", {"load_balance_loss_weight": 0.01}, "aux loss"),
        ("llama2", {"gradient_clipping_threshold": 1.0}, "clipping formula"),
        ("llama2", {"muon_clip_grad": 0.0}, "clipping formula"),
        ("llama2", {"learning_rate_schedule_steps": 100}, "learning rate schedule"),
        ("llama2", {"warmup_steps_fraction": 0.1}, "learning rate schedule"),
        ("llama2", {"lr_schedule_type": "wsd"}, "learning rate schedule"),
        ("llama2", {"dropout_rate": 0.1}, "dropout"),
        ("llama2", {"dtype": "bfloat16"}, "dtypes"),
        ("llama2", {"mu_dtype": "bfloat16"}, "dtypes"),
        ("deepseek3", {"mscale": 0.707}, "attention softmax"),
        ("llama2", {"attn_logits_soft_cap": 50.0}, "attention softmax"),
        ("llama2", {"muon_coefficient_type": "simple"}, "optimizer"),
        ("llama2", {"muon_bias_correction": OPEN}, "optimizer"),
        ("llama2", {"adam_eps": 1e-5}, "optimizer"),
        ("llama2", {"opt_type": "adamw"}, "optimizer"),
        ("deepseek3", {"routed_scaling_factor": 2.5}, "experts"),
        ("qwen3_moe", {"norm_topk_prob": False}, "experts"),
        ("llama2", {"packing": True}, "data"),
        ("llama2", {"decoder_block": "qwen3"}, "model"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_key_that_breaks_equality_is_named(
    compared: Any, model: str, change: dict[str, Any], topic: str
) -> None:
    report = compared(source(MODELS[model]), **change)
    (row,) = found(report)
    (key,) = change
    assert (row.topic, row.key) == (topic, key)
    assert row.verdict == ("not set" if change[key] is OPEN else "differs")
    assert row.remedy.startswith(f"{key}=")


@pytest.mark.parametrize(
    ("arguments", "topic"),
    [
        ({"moe_z_loss_coeff": 0.001}, "z-loss"),
        ({"hidden_dropout": 0.1}, "dropout"),
        ({"eod_mask_loss": True, "micro_batch_size": 1}, "loss averaging"),
        ({"window_size": (128, 0)}, "attention softmax"),
        ({"fp8": "hybrid"}, "dtypes"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_maxtext_does_not_compute_is_a_finding(
    compared: Any, arguments: dict[str, Any], topic: str
) -> None:
    (row,) = found(compared(changed(source(MODELS["llama2"]), **arguments)))
    assert (row.topic, row.verdict) == (topic, "not reproduced")
    assert row.megatron


def test_losses_per_token_are_maxtexts(compared: Any) -> None:
    arguments = {"calculate_per_token_loss": True, "eod_mask_loss": True, "micro_batch_size": 1}
    report = compared(changed(source(MODELS["llama2"]), **arguments))
    assert [row.verdict for row in report.rows if row.topic == "loss averaging"] == ["same"]


def test_a_schedule_that_starts_again_is_a_finding(compared: Any) -> None:
    words = {"load_full_state_path": OPEN, "load_parameters_path": "somewhere"}
    (row,) = found(compared(source(MODELS["llama2"]), **words))
    assert (row.topic, row.megatron) == ("learning rate schedule", "iteration=7")
    assert "start at step 0" in row.remedy


def test_unscanned_layers_are_the_users_choice(compared: Any) -> None:
    assert compared(source(MODELS["llama2"]), scan_layers=False).passed


def test_values_may_be_written_as_yaml_reads_them() -> None:
    assert same("1e-7", 1e-7)
    assert same("None", None)
    assert same(["silu", "linear"], ("silu", "linear"))
    assert same("True", True)
    assert not same(1e-7, 2e-7)
    assert not same("llama2", "qwen3")


def test_later_words_win_and_conversion_json_is_read(tmp_path: Path) -> None:
    file = tmp_path / "conversion.json"
    report = {"maxtext_config": {"steps": 3, "dtype": "float32"}, "maxtext_version": "0.2.4"}
    file.write_text(json.dumps(report))
    given = read_given([str(file), "steps=5", "mlp_activations=[silu,linear]", "adam_eps=1e-08"])
    assert given.version == "0.2.4"
    assert given.values["steps"] == 5
    assert given.values["mlp_activations"] == ["silu", "linear"]
    assert same(given.values["adam_eps"], 1e-8)


@pytest.mark.parametrize("word", ["steps", "=3", "a-b=3", "steps=[1"])
def test_a_word_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="--maxtext-config"):
        read_given([word])


def test_command_prints_both_values_and_the_key_to_set() -> None:
    result = run(DENSE, "--maxtext-config", "normalization_layer_epsilon=1e-06")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if "norm eps" in line]
    for text in ("norm_epsilon=1e-05", "=1e-06 (given)", "DIFFERS", "layer_epsilon=1e-05"):
        assert text in line.replace("1.0e-05", "1e-05")
    assert "mean of the first two" in result.stdout
    assert "lr=0.01" in result.stdout


def test_command_reads_the_defaults_of_a_checkout() -> None:
    tree = released("0.2.5")
    words = ("--maxtext-config", "opt_type=muon", "--maxtext-config", "foo=1")
    result = run(DENSE, *words, "--maxtext", tree, "--json", "-")
    report = json.loads(result.stdout)
    rows = {row["key"]: row for row in report["rows"]}
    assert (result.exit_code, report["passed"]) == (1, False)
    assert rows["opt_type"]["verdict"] == "same"
    assert (rows["adam_b2"]["value"], rows["adam_b2"]["needed"]) == (0.95, 0.999)
    assert rows["muon_nesterov"]["verdict"] == rows["foo"]["verdict"] == "no such key"
    assert any("not migrated" in note for note in report["notes"])


def test_a_named_model_brings_its_own_keys() -> None:
    words = ("--maxtext-config", "model_name=qwen3-0.6b", "--maxtext", released("0.2.5"))
    rows = json.loads(run(DENSE, *words, "--json", "-").stdout)["rows"]
    assert {row["key"]: row["value"] for row in rows}["base_emb_dim"] == 1024


def test_a_misspelled_key_is_told_from_one_without_influence() -> None:
    words = ("--maxtext-config", "learning_rat=3", "--maxtext-config", "profiler=xplane")
    report = json.loads(run(DENSE, *words, "--json", "-").stdout)
    (row,) = [row for row in report["rows"] if row["topic"] == "unknown key"]
    assert (row["key"], row["remedy"]) == ("learning_rat", "learning_rate?")
    assert any(note == "not compared: profiler" for note in report["notes"])


def test_command_exits_2_where_it_cannot_run(tmp_path: Path) -> None:
    broken, listed = tmp_path / "broken.yml", tmp_path / "list.yml"
    broken.write_text("a: 1\nb: [1\nc: 2\n")
    listed.write_text("- a\n- b\n")
    (tmp_path / "bad.json").write_text('{"a": }')
    (tmp_path / "bytes.yml").write_bytes(b"\xff\xfe\x00")
    one = "--maxtext-config"
    cases: dict[str, list[str | Path]] = {
        "no such folder": [tmp_path / "missing", one, "steps=3"],
        "no such file, and not KEY=VALUE": [DENSE, one, "missing.yml"],
        "broken.yml:3: not YAML": [DENSE, one, broken],
        "list.yml: expected keys and values": [DENSE, one, listed],
        "bad.json:1: not JSON": [DENSE, one, tmp_path / "bad.json"],
        "bytes.yml: not a text file": [DENSE, one, tmp_path / "bytes.yml"],
        "the defaults of MaxText main": [DENSE, one, "steps=3", "--maxtext-version", "main"],
        "no MaxText that can be trained": [DENSE, one, "steps=3", "--maxtext", tmp_path],
        "has no nonsense.yml": [
            *(DENSE, one, "model_name=nonsense"),
            *("--maxtext", released("0.2.5")),
        ],
        "Missing option '--maxtext-config'": [DENSE],
    }
    for message, arguments in cases.items():
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), message
        assert message in result.stderr
        assert "Traceback" not in result.stderr
