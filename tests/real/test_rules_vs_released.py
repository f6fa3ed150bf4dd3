"""The fork's rules against the sources of the releases themselves."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muon_fork.model_dimensions import (
    DECODER_BLOCKS,
    QUERY_STORED_PLAIN,
    QUERY_STORED_SCALED,
)
from muon_fork.presets import preset
from muon_fork.rules import dimension_numbers_for
from tests.fork.param_trees import FAMILIES, LAYOUTS, Leaf, config, dimensions, leaves
from tests.real.maxtext.trainer import built

pytestmark = pytest.mark.real

HERE = Path(__file__).resolve().parent
WITH_MUON = ("0.2.0", "0.2.1", "0.2.2", "0.2.3", "0.2.4", "0.2.5")
COMPARED = ("0.2.3", "0.2.4", "0.2.5")


class Released(NamedTuple):
    """What a release's transform_logic builds."""

    reduction_axis: tuple[int, ...]
    output_axis: tuple[int, ...]


def source(release: str, name: str) -> Path:
    return built("releases") / release / "maxtext" / name


def transform_logic(release: str) -> Callable[..., Any]:
    """The released function alone, without the model code that its module imports."""
    tree = ast.parse(source(release, "utils/muon_utils.py").read_text(encoding="utf-8"))
    wanted = ("transform_logic", "_is_path_contain_any")
    body = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign)
        or (isinstance(node, ast.FunctionDef) and node.name in wanted)
    ]
    names: dict[str, Any] = {"mdn": Released}
    exec("from typing import Optional, Tuple", names)
    exec(compile(ast.Module(body, []), release, "exec"), names)
    function: Callable[..., Any] = names["transform_logic"]
    return function


# Where the rules with the optax preset differ on purpose: (release, path, why).
CORRECTED: tuple[tuple[str, str, str], ...] = (
    ("0.2.[34]", r"(moe_block|routed_experts|GptOssMlp)/(wi_0|wi_1|wo)$", "experts are batch"),
    ("0.2.[34]", r"GptOssMlp/w(i_0|i_1|o)_bias$", "a bias is a vector"),
    ("0.2.[34]", r"(A_log|dt_bias|sinks)$", "a vector, also with a layer axis"),
    ("0.2.[34]", r"conv1d/kernel$", "a depthwise convolution is no matrix"),
    ("0.2.[34]", r"shared_expert_gate/kernel$", "one column; 0.2.5 gives it to AdamW"),
    ("0.2.[34]", r"(hc_base|hc_scale|(pre|post|res)_(beta|alpha_scale))$", "mHC vectors"),
    ("0.2.3", r"o_a_proj/kernel$", "groups are batch"),
    ("0.2.3", r"self_attention/wkv/kernel$", "a head axis is part of the output"),
    ("0.2.[345]", r"self_attention_(local|global)/(query|key|value|out)/kernel$", "gemma2's twins"),
    ("0.2.[34]", r"(GptOssAttention|attention)/(query|key|value|out)/kernel$", "attention blocks"),
    ("0.2.5", r"layers_\d/attention/out/kernel$", "olmo3, unscanned: heads are inputs"),
    ("0.2.[345]", r"qkv_proj/kernel$", "query, key and value are three matrices"),
    ("0.2.[345]", r"MoeBlock_0/wi$", "gate and up are two matrices"),
)


def differences(release: str) -> list[tuple[str, Leaf, Any, Any]]:
    released = transform_logic(release)
    takes_shape = "shape" in released.__code__.co_varnames[: released.__code__.co_argcount]
    found = []
    for family in FAMILIES:
        model = dimensions(family)
        for layout in LAYOUTS:
            for leaf in leaves(family, layout):
                path = ("params", *leaf.path)
                theirs = released(path, leaf.shape) if takes_shape else released(path)
                ours = dimension_numbers_for(path, model, preset("optax"), leaf.shape)
                plain = None if ours is None else ours[:2]
                if plain != theirs or (ours is not None and ours[2:5] != ((), None, 1.0)):
                    found.append((family, leaf, ours, theirs))
    return found


@pytest.mark.parametrize("release", COMPARED)
def test_optax_preset_routes_as_released_except_for_corrections(release: str) -> None:
    allowed = [re.compile(path) for pattern, path, _ in CORRECTED if re.fullmatch(pattern, release)]
    unexplained = [
        (family, leaf.name, ours, theirs)
        for family, leaf, ours, theirs in differences(release)
        if not any(pattern.search(leaf.name) for pattern in allowed)
    ]
    assert unexplained == []


def test_every_correction_is_still_one() -> None:
    used: Counter[str] = Counter()
    for release in COMPARED:
        for _, leaf, _, _ in differences(release):
            for pattern, path, _ in CORRECTED:
                used[path] += bool(re.fullmatch(pattern, release) and re.search(path, leaf.name))
    assert [path for _, path, _ in CORRECTED if not used[path]] == []


MODULES = {
    "default": "layers/nnx_decoders.py",
    "deepseek": "models/deepseek.py",
    "qwen3_moe": "models/qwen3.py",
    "qwen3_next": "models/qwen3.py",
    "qwen3_custom_moe": "models/qwen3_custom.py",
}
# Attention classes that scale by themselves.
SELF_SCALING = ("MLA", "CompressedAttention", "AttentionOp")


@pytest.mark.parametrize("release", WITH_MUON)
def test_which_blocks_store_the_query_scaled(release: str) -> None:
    """A block stores it scaled exactly if it hands its attention no ``query_pre_attn_scalar``."""
    checked = 0
    for block in DECODER_BLOCKS:
        path = source(release, MODULES.get(block, f"models/{block}.py"))
        calls = _attention_calls(path) if path.exists() else []
        if not calls:
            continue
        scales = any(
            name in SELF_SCALING or any(key.arg == "query_pre_attn_scalar" for key in keywords)
            for name, keywords in calls
        )
        assert scales == (block in QUERY_STORED_PLAIN), (block, calls)
        assert scales != (block in QUERY_STORED_SCALED), block
        checked += 1
    assert checked >= 12


def _attention_calls(path: Path) -> list[tuple[str, list[ast.keyword]]]:
    calls = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if any(key.arg == "num_query_heads" for key in node.keywords):
                calls.append((name, node.keywords))
    return calls


def test_runtime_scale_of_attention_is_what_the_blocks_pass() -> None:
    """Every release multiplies the query at run time by that argument and by nothing else."""
    for release in WITH_MUON:
        text = source(release, "layers/attentions.py").read_text(encoding="utf-8")
        assert "query = query * self.query_pre_attn_scalar" in text, release
        assert text.count("depth_scaling = jnp.sqrt(self.head_dim)") == 1, release


def test_newest_release_has_no_block_of_which_nothing_is_known() -> None:
    text = source("0.2.5", "common/common_types.py").read_text(encoding="utf-8")
    enum = re.search(r"class DecoderBlockType\b.*?\n\n\n", text, re.DOTALL)
    assert enum is not None
    blocks = set(re.findall(r'^  \w+ = "(\w+)"', enum.group(), re.MULTILINE))
    # Released MaxText does not let these train with Muon, and neither does a migrated one.
    without_rules = {"simple", "simple_mlp", "gemma4", "gemma4_small"}
    assert blocks - set(DECODER_BLOCKS) == without_rules


def test_recorded_trees_are_the_release(tmp_path: Path) -> None:
    """The recorded trees that all routing tests run on, made again by the released code."""
    families = ("gemma2", "qwen3_moe", "deepseek3")
    command = [str(built("maxtext")), str(HERE / "rules" / "record_trees.py"), *families]
    environment = os.environ | {"PYTHONPATH": str(built("releases") / "0.2.5")}
    run = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    trees = json.loads(run.stdout.splitlines()[-1])
    for family in families:
        expected = vars(config(family))
        assert trees[family]["config"] == {k: expected[k] for k in trees[family]["config"]}
        for layout in LAYOUTS:
            recorded = {
                name: (tuple(shape), axes) for name, (shape, axes) in trees[family][layout].items()
            }
            assert set(recorded) == {leaf.name for leaf in leaves(family, layout)}
            for leaf in leaves(family, layout):
                assert recorded[leaf.name][0] == leaf.shape, leaf.name
                if leaf.axes is not None:
                    assert tuple(recorded[leaf.name][1]) == leaf.axes, leaf.name
