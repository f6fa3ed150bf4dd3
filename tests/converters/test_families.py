"""Every shipped family against the parameter trees that MaxText itself has."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.errors import CheckpointError
from converters.families.detect import detect, named
from converters.families.files import read_family
from converters.families.tables import FAMILIES
from converters.maxtext.plan import Options, Plan, plan_target
from converters.source import Key, State
from converters.target import TargetTensor
from tests.converters.megatron_models import MODELS, random, shapes, source, states, tensor
from tests.fork.param_trees import leaves as recorded

CHOSEN = {"mistral": "mistral"}


def planned(model: str, **options: object) -> Plan:
    chosen = Options(family=CHOSEN.get(model), **options)  # type: ignore[arg-type]
    return plan_target(source(MODELS[model]), chosen)


def weights(plan: Plan) -> dict[str, TargetTensor]:
    root = ("params", "params")
    return {"/".join(r.path[2:]): r for r in plan.records if r.path[:2] == root}


def variables(plan: Plan) -> dict[str, tuple[int, ...]]:
    kept = [r for r in plan.records if r.path[:2] == ("nnx_aux", "model")]
    return {"/".join(r.path[2:]): tuple(reversed(r.shape)) for r in kept}


@pytest.mark.parametrize("scan", [True, False], ids=["scan", "unscan"])
@pytest.mark.parametrize("model", MODELS)
def test_tree_is_maxtexts_own(model: str, scan: bool) -> None:
    plan = planned(model, scan=scan)
    expected = {leaf.name: leaf.shape for leaf in recorded(model, "scan" if scan else "unscan")}
    made = {name: row.shape for name, row in weights(plan).items()}
    # The recorded model has no name, so its router bias is a parameter with layers last.
    assert made | variables(plan) == expected
    for row in plan.records:
        array = row.build()
        assert (array.shape, array.dtype) == (row.shape, row.dtype), row.path


@pytest.mark.parametrize("model", MODELS)
def test_scanned_layers_are_the_unscanned_ones_stacked(model: str) -> None:
    """Both layouts hold the same numbers: each unscanned leaf is one slice of a scanned leaf."""
    scanned = [r.build() for r in planned(model, scan=True).records]
    unscanned = [r.build() for r in planned(model, scan=False).records]

    def content(arrays: list[np.ndarray]) -> np.ndarray:
        return np.sort(np.concatenate([a.astype(np.float64).ravel() for a in arrays]))

    assert np.array_equal(content(scanned), content(unscanned))


@pytest.mark.parametrize("model", [m for m in MODELS if m not in CHOSEN])
def test_detection_needs_no_help(model: str) -> None:
    family = {
        "llama2": "llama",
        "llama2_tied": "llama",
        "deepseek2": "deepseek",
        "deepseek3": "deepseek",
        "kimi_k2": "deepseek",
    }.get(model, model)
    assert detect(MODELS[model], shapes(MODELS[model])).name == family


def test_every_family_is_registered_once_and_tested() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    tested = {planned(model).family for model in MODELS}
    assert tested == {f.name for f in FAMILIES if not f.refusal}


def test_what_no_family_has_is_explained_per_family() -> None:
    arguments = MODELS["qwen3"] | {"attention_output_gate": True}
    with pytest.raises(CheckpointError) as caught:
        detect(arguments, shapes(arguments))
    assert "qwen3: knows no gated_attention" in str(caught.value)
    assert "deepseek: needs mla; knows no gated_attention, qk_norm" in str(caught.value)


def test_grouped_queries_with_shared_experts_have_no_maxtext() -> None:
    arguments = MODELS["mixtral"] | {"moe_shared_expert_intermediate_size": 96}
    with pytest.raises(CheckpointError, match="cannot be continued: grouped-query attention"):
        plan_target(source(arguments), Options())


def test_a_family_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="no qwen3: that needs qk_norm"):
        plan_target(source(MODELS["llama2"]), Options(family="qwen3"))
    with pytest.raises(CheckpointError, match="unknown family 'llama4': expected one of llama"):
        named("llama4")


@pytest.mark.parametrize(
    ("frequency", "message"),
    [
        ([1, 0, 1], "dense layers before all MoE layers"),
        ([0, 1], "2 entries for 3 layers"),
        (2, "dense layers before all MoE layers"),
    ],
)
def test_mixed_layers_must_start_dense(frequency: object, message: str) -> None:
    changed = source(MODELS["deepseek3"])
    run = dataclasses.replace(
        changed.run, arguments={**changed.run.arguments, "moe_layer_freq": frequency}
    )
    with pytest.raises(CheckpointError, match=message):
        plan_target(dataclasses.replace(changed, run=run), Options())


def test_an_odd_gemma2_has_no_pairs() -> None:
    with pytest.raises(CheckpointError, match="3 layers: gemma2 needs pairs"):
        plan_target(source(MODELS["gemma2"] | {"num_layers": 3}), Options())


def test_scanned_gpt_oss_needs_whole_cycles() -> None:
    odd = source(MODELS["gpt_oss"] | {"num_layers": 3})
    with pytest.raises(CheckpointError, match="--no-scan"):
        plan_target(odd, Options())
    assert plan_target(odd, Options(scan=False)).family == "gpt_oss"


@pytest.mark.parametrize("damage", ["missing", "foreign", "shape", "orphan"])
def test_an_incomplete_table_is_an_error_that_names_the_row(damage: str) -> None:
    whole = source(MODELS["qwen3"])
    tensors = dict(whole.tensors)
    name = "decoder.layers.1.mlp.linear_fc2.weight"
    if damage == "missing":
        del tensors[Key(name, State.WEIGHT)], tensors[Key(name, State.MOMENTUM)]
        expected = f"{name}: in the table, not in the checkpoint"
    elif damage == "foreign":
        key = Key("decoder.layers.1.mlp.extra.weight", State.WEIGHT)
        tensors[key] = tensor(random(key, (3,)))
        expected = f"{key.parameter}: in the checkpoint, no row uses it"
    elif damage == "shape":
        for state in (State.WEIGHT, State.MOMENTUM):
            tensors[Key(name, state)] = tensor(random(Key(name, state), (64, 90)))
        expected = r"decoder/layers/mlp/wo/kernel: layers of different shapes: .*\[90, 64\]"
    else:
        key = Key("decoder.layers.9.mlp.linear_fc2.weight", State.MOMENTUM)
        tensors[key] = tensor(random(key, (3,)))
        expected = "layers.9.mlp.linear_fc2.weight .*parameter that the checkpoint does not have"
    with pytest.raises(CheckpointError, match=expected):
        plan_target(dataclasses.replace(whole, tensors=tensors), Options())


LING = Path(__file__).parents[2] / "converters" / "families" / "ling.toml"


def ling() -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Six layers, MLA in the fourth and the last; shapes as the file's sources are published."""
    arguments = MODELS["deepseek3"] | {
        "num_layers": 6,
        "moe_layer_freq": [0, 1, 1, 1, 1, 1],
        "linear_attention_freq": 4,
    }
    found = {}
    heads, size, hidden = 4, 16, 64
    linear = {
        **{f"{name}_proj.weight": (heads * size, hidden) for name in "qkvfg"},
        **{f"{name}_conv1d.weight": (heads * size, 1, 4) for name in "qkv"},
        "A_log": (heads,),
        "dt_bias": (heads * size,),
        "b_proj.weight": (heads, hidden),
        "o_norm.weight": (size,),
        "o_proj.weight": (hidden, heads * size),
    }
    for name, shape in shapes(arguments).items():
        prefix, attention, _ = name.partition("self_attention.")
        inner = prefix.startswith("decoder") and attention and "layers.3" not in prefix
        if not inner or "layers.5" in prefix:
            found[name] = shape
        else:
            found |= {f"{prefix}{attention}{suffix}": s for suffix, s in linear.items()}
    for prefix in ("decoder.layers.3.", "decoder.layers.5.", "mtp.layers.0.transformer_layer."):
        found[f"{prefix}self_attention.g_proj.weight"] = (heads, hidden)
    return arguments, found


def test_the_shipped_file_maps_every_layer_kind() -> None:
    arguments, found = ling()
    base = source(arguments)
    adam = ("_conv1d.weight", ".A_log", ".dt_bias")
    tensors = {}
    for name, shape in found.items():
        kept = states(name, shape) if not name.endswith(adam) else states(name, (1,))
        tensors |= {Key(name, s): tensor(random(Key(name, s), shape)) for s in kept}
    origin = dataclasses.replace(base, tensors=tensors)
    options = Options(family=str(LING), scan=False)
    plan = plan_target(origin, options)
    made = weights(plan)
    assert made["decoder/moe_layers_0/attention/q_proj/kernel"].shape == (64, 4, 16)
    assert made["decoder/moe_layers_0/attention/q_conv/kernel"].shape == (4, 1, 64)
    assert made["decoder/moe_layers_2/attention/wq_b/kernel"].shape == (24, 4, 20)
    gates = {name: made[f"decoder/{name}/attention/g_proj/kernel"] for name in GATES}
    assert {n: key.sources[0].parameter for n, key in gates.items()} == GATES
    assert any("not verified" in note for note in plan.notes)
    with pytest.raises(CheckpointError, match="does not scan the layers of ling: --no-scan"):
        plan_target(origin, Options(family=str(LING)))


# The decay gate of linear attention and the output gate of MLA have one name in MaxText.
GATES = {
    "dense_layers_0": "decoder.layers.0.self_attention.f_proj.weight",
    "moe_layers_2": "decoder.layers.3.self_attention.g_proj.weight",
    "moe_layers_3": "decoder.layers.4.self_attention.f_proj.weight",
    "moe_layers_4": "decoder.layers.5.self_attention.g_proj.weight",
}


def test_a_file_describes_a_family_as_a_shipped_table_does(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\ndecoder_block = "llama2"\nlayers = "stack"\nallows = ["untied"]\n'
        "layer = [\n" + "".join(f"  {_toml(row)},\n" for row in named("llama").layer) + "]\n"
        "top = [\n" + "".join(f"  {_toml(row)},\n" for row in named("llama").top) + "]\n"
    )
    mine = plan_target(source(MODELS["llama2"]), Options(family=str(file)))
    shipped = planned("llama2")
    assert mine.family == "mine"
    for own, other in zip(mine.records, shipped.records, strict=True):
        assert own.path == other.path
        assert np.array_equal(own.build(), other.build())


def _toml(row: object) -> str:
    assert dataclasses.is_dataclass(row)
    source_, targets, word, when = dataclasses.astuple(row)  # type: ignore[arg-type]
    return f'["{source_}", {list(targets)!r}, "{word}", "{when}"]'.replace("'", '"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not TOML"),
        ('name = "x"', "missing keys"),
        ('name = 3\ndecoder_block = "a"\nlayers = "stack"\nlayer = []\ntop = []', "expected a str"),
        (
            'name = "x"\ndecoder_block = "a"\nlayers = "heap"\nlayer = []\ntop = []',
            "layers='heap': expected one of stack",
        ),
        (
            'name = "x"\ndecoder_block = "a"\nlayers = "stack"\ntop = []\n'
            'layer = [["a", ["b"], "turn"]]',
            "layer row 1: unknown word 'turn'",
        ),
        (
            'name = "x"\ndecoder_block = "a"\nlayers = "stack"\ntop = []\nlayer = [["a", "b"]]',
            "layer row 1: ",
        ),
    ],
)
def test_a_wrong_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "family.toml"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_family(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.toml: cannot be read"):
        read_family(Path("nowhere.toml"))
