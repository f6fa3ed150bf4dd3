"""Arguments of real Megatron runs, and what must be refused."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from muon_fork.megatron_args import (
    CORE,
    MOONSHOT,
    from_megatron_args,
    read_args_file,
    settle,
)
from muon_fork.megatron_refusals import REFUSALS
from muon_fork.presets import preset
from muon_fork.spec import MuonSpec, SpecError

DATA = Path(__file__).parents[1] / "data" / "megatron_args"
MUON_RUNS = ("dense", "v0.16.1_dense", "v0.18.2_dense", "bf16", "moe_all", "mla")

# The command line of these runs, written by hand from their description.
EXPECTED = preset("megatron").replace(
    ns_dtype="float32",
    extra_scale_factor=0.2,
    weight_decay=0.1,
    adam_weight_decay=0.1,
    clip_grad=1.0,
)

MOONSHOT_ARGS: dict[str, Any] = {
    "optimizer": "muon",
    "muon_momentum": 0.95,
    "muon_nesterov": True,
    "muon_ns_steps": 5,
    "muon_matched_adamw_rms": 0.2,
    "weight_decay": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": 1e-8,
    "clip_grad": 1.0,
}


def saved(name: str) -> dict[str, Any]:
    return read_args_file(DATA / f"{name}.json")


@pytest.mark.parametrize("name", MUON_RUNS)
def test_real_run_is_read(name: str) -> None:
    assert from_megatron_args(saved(name)) == EXPECTED


def test_namespace_and_mapping_are_the_same() -> None:
    args = saved("dense")
    assert from_megatron_args(argparse.Namespace(**args)) == from_megatron_args(args)


def test_every_recorded_value_reaches_the_spec() -> None:
    """Changing any argument that settles a field changes that field."""
    args = saved("dense")
    for argument in CORE:
        name = next(n for n in argument.names if n in args)
        other: Any = {
            "muon_coefficient_type": "polar_express",
            "muon_scale_mode": "unit_rms_norm",
            "muon_fp32_matmul_prec": "medium",
        }.get(name)
        value = args[name]
        if other is None:
            other = (not value) if isinstance(value, bool) else type(value)(value * 0.5 + 1)
            other = (
                min(other, 0.5) if name in ("muon_momentum", "adam_beta1", "adam_beta2") else other
            )
        changed = from_megatron_args({**args, name: other})
        assert getattr(changed, argument.field) != getattr(EXPECTED, argument.field), name


@pytest.mark.parametrize("argument", CORE, ids=lambda a: a.field)
def test_missing_argument_names_its_flag(argument: Any) -> None:
    args = saved("dense")
    for name in argument.names:
        args.pop(name, None)
    with pytest.raises(SpecError, match=argument.flag):
        from_megatron_args(args)


@pytest.mark.parametrize("argument", MOONSHOT[:-1], ids=lambda a: a.field)
def test_missing_moonshot_argument_names_its_flag(argument: Any) -> None:
    args = {k: v for k, v in MOONSHOT_ARGS.items() if k not in argument.names}
    with pytest.raises(SpecError, match=argument.flag):
        from_megatron_args(args)


def test_override_settles_what_is_missing() -> None:
    args = saved("dense")
    del args["muon_momentum"]
    assert from_megatron_args(args, beta=0.9).beta == 0.9


def test_oldest_release_always_used_quintic_and_says_so() -> None:
    spec, notes = settle(saved("v0.16.1_dense"), {})
    assert spec.coefficient_type == "quintic"
    assert any("quintic" in note for note in notes)
    with pytest.raises(SpecError, match="muon_num_ns_steps=6"):
        settle({**saved("v0.16.1_dense"), "muon_num_ns_steps": 6}, {})


def test_eps_is_noted_until_it_is_given() -> None:
    _, notes = settle(saved("dense"), {})
    assert any("ns_eps" in note for note in notes)
    spec, notes = settle(saved("dense"), {"ns_eps": 1e-15})
    assert spec.ns_eps == 1e-15
    assert not any("ns_eps" in note for note in notes)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("medium", "bfloat16"), ("high", "float32"), ("highest", "float32"), ("low", "float32")],
)
def test_matmul_precision(precision: str, dtype: str) -> None:
    spec, notes = settle({**saved("dense"), "muon_fp32_matmul_prec": precision}, {})
    assert spec.ns_dtype == dtype
    assert any("low" in note for note in notes) == (precision == "low")


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(SpecError, match="muon_fp32_matmul_prec='fp8'"):
        settle({**saved("dense"), "muon_fp32_matmul_prec": "fp8"}, {})


def test_blockwise_tensor_parallel_is_refused_unless_allowed() -> None:
    with pytest.raises(SpecError, match=r"blockwise.*allow_blockwise_tp"):
        from_megatron_args(saved("tp2"))
    spec, notes = settle(saved("tp2"), {"allow_blockwise_tp": True})
    assert spec == EXPECTED
    assert any("blockwise" in note for note in notes)
    for mode in ("duplicated", "distributed"):
        assert from_megatron_args({**saved("tp2"), "muon_tp_mode": mode}) == EXPECTED
    with pytest.raises(SpecError, match="--muon-tp-mode"):
        from_megatron_args({**saved("tp2"), "muon_tp_mode": None})


def test_a_run_with_adam_trains_every_parameter_with_adamw() -> None:
    args = saved("adam_distopt_fully_reshardable")
    spec, notes = settle({**args, "tensor_model_parallel_size": 2}, {})
    assert spec == MuonSpec(
        adam_only=True,
        unfold_scaled_weights=True,
        weight_decay=0.1,
        weight_decay_norm_params=False,
        apply_wd_to_qk_layernorm=False,
        adam_weight_decay=0.1,
        adam_b2=0.999,
        adam_nesterov=False,
        decay_all_adam_params=False,
        clip_grad=1.0,
    )
    assert any("AdamW branch" in note for note in notes)
    bare = {name: value for name, value in args.items() if not name.startswith("muon_")}
    assert from_megatron_args(bare) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adam_eps": None}, "--adam-eps"),
        ({"clip_grad": None}, "--clip-grad"),
        ({"use_mup": True}, "use_mup"),
        ({"decoupled_weight_decay": False}, "decoupled_weight_decay"),
        ({"decoupled_lr": 1e-4}, "decoupled_lr"),
        ({"start_weight_decay": 0.0}, "start_weight_decay"),
    ],
)
def test_what_adam_cannot_match_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        from_megatron_args({**saved("adam_distopt_fully_reshardable"), **changes})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("nesterov", 1, "expected a bool"),
        ("num_ns_steps", 5.5, "expected a int"),
        ("num_ns_steps", True, "expected a int"),
        ("beta", "abc", "expected a float"),
        ("beta", float("nan"), "expected a float"),
        ("ns_eps", float("inf"), "expected a float"),
        ("scale_mode", 3, "expected a word"),
        ("ns_dtype", [1], "expected one of"),
        ("adam_only", True, "optimizer='muon'"),
    ],
)
def test_overrides_are_of_the_fields_kind(field: str, value: object, message: str) -> None:
    with pytest.raises(SpecError, match=rf"{field}=.*{message}"):
        from_megatron_args(saved("dense"), **{field: value})


def test_what_a_run_without_muon_has_decides() -> None:
    with pytest.raises(SpecError, match="adam_only=False, but optimizer='adam'"):
        from_megatron_args(saved("adam_distopt_fully_reshardable"), adam_only=False)
    with pytest.raises(SpecError, match="adam_eps=nan"):
        from_megatron_args({**saved("dense"), "adam_eps": float("nan")})


def test_other_optimizers_are_refused() -> None:
    with pytest.raises(SpecError, match=r"optimizer='sgd'.*neither with Muon nor with Adam"):
        from_megatron_args({**saved("dense"), "optimizer": "sgd"})
    with pytest.raises(SpecError, match="second moment"):
        from_megatron_args({**saved("dense"), "optimizer": "adaptive_muon"})
    with pytest.raises(SpecError, match="--optimizer"):
        from_megatron_args({})


def test_layer_wise_spelling_is_noted() -> None:
    spec, notes = settle({**saved("dense"), "optimizer": "dist_muon"}, {})
    assert spec == EXPECTED
    assert any("dist_muon" in note for note in notes)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda r: r.name)
def test_what_cannot_be_matched_is_refused(refusal: Any) -> None:
    number = not refusal.matched or refusal.matched == (1, 1.0)
    value = 0.5 if number else refusal.matched != (True,)
    with pytest.raises(SpecError, match=refusal.name):
        from_megatron_args({**saved("dense"), refusal.name: value})


def test_changing_weight_decay_is_refused() -> None:
    with pytest.raises(SpecError, match="end_weight_decay"):
        from_megatron_args({**saved("dense"), "end_weight_decay": 0.2})


def test_decay_exemptions_are_read() -> None:
    spec = from_megatron_args({**saved("dense"), "apply_wd_to_qk_layernorm": True})
    assert spec.apply_wd_to_qk_layernorm
    assert not spec.weight_decay_norm_params


def test_gated_attention_is_noted() -> None:
    _, notes = settle({**saved("dense"), "attention_output_gate": True}, {})
    assert any("0.19" in note for note in notes)


def test_moonshot_lineage_is_the_rfc_preset() -> None:
    spec, notes = settle(
        {
            **MOONSHOT_ARGS,
            "muon_split_head": True,
            "muon_split_linear_fc1": True,
            "muon_batch_update": True,
            "muon_batch_update_size": 16,
            "weight_decay_norm_params": True,
            "multi_latent_attention": True,
        },
        {},
    )
    run = {"weight_decay": 0.1, "adam_weight_decay": 0.1, "adam_b2": 0.95, "clip_grad": 1.0}
    assert spec == preset("megatron_rfc").replace(weight_decay_norm_params=True, **run)
    assert any("Moonshot" in note for note in notes)


def test_moonshot_without_split_flags_is_fused() -> None:
    spec = from_megatron_args(MOONSHOT_ARGS)
    assert spec.qkv_granularity == "fused"
    assert not spec.split_linear_fc1
    assert spec.nesterov_style == "sgd"


def test_two_dialects_at_once_are_refused() -> None:
    with pytest.raises(SpecError, match="two Muons"):
        from_megatron_args({**saved("dense"), "muon_matched_adamw_rms": 0.2})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("muon_momentum", "0.95"),
        ("muon_momentum", True),
        ("muon_num_ns_steps", 5.0),
        ("muon_nesterov", 1),
        ("muon_coefficient_type", 3),
        ("muon_coefficient_type", "cubic5"),
        ("muon_momentum", 1.5),
    ],
)
def test_wrong_types_and_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises(SpecError):
        from_megatron_args({**saved("dense"), name: value})


def test_unknown_override_is_refused() -> None:
    with pytest.raises(SpecError, match="momentun"):
        from_megatron_args(saved("dense"), momentun=0.9)


def test_args_file_errors_name_file_and_line(tmp_path: Path) -> None:
    bad = tmp_path / "args.json"
    with pytest.raises(SpecError, match=r"args\.json"):
        read_args_file(bad)
    bad.write_text('{\n"a": 1,\n oops}\n')
    with pytest.raises(SpecError, match=r"args\.json:3"):
        read_args_file(bad)
    bad.write_text("[1]")
    with pytest.raises(SpecError, match="JSON object"):
        read_args_file(bad)
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not a text file"):
        read_args_file(bad)
    bad.write_text(json.dumps({"args": {"optimizer": "muon"}}))
    assert read_args_file(bad) == {"optimizer": "muon"}


def test_no_spec_field_is_left_to_a_default() -> None:
    """A spec built from nothing but the defaults of MuonSpec would be optax's."""
    spec = from_megatron_args(saved("dense"))
    same = set(MuonSpec.__dataclass_fields__) - set(spec.differences(MuonSpec()))
    assert "bias_correction" not in same
    assert "unfold_scaled_weights" not in same
    assert "adam_nesterov" not in same
