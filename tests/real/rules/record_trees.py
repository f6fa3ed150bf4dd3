"""Records the parameter trees of a MaxText release; runs in MaxText's Python, not in the tests'.

    PYTHONPATH=<unpacked release> python record_trees.py FAMILY... > trees.json

Writes ``{family: {"config": ..., "scan": {path: [shape, axis names]}, "unscan": ...}}``. The files
in tests/data/param_trees hold these, one family each.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("DECOUPLE_GCLOUD", "TRUE")

import jax
from flax import nnx
from maxtext.configs import pyconfig
from maxtext.utils import maxtext_utils, model_creation_utils
from maxtext.utils.globals import MAXTEXT_PKG_DIR

COMMON = (
    "hardware=cpu skip_jax_distributed_system=True attention=dot_product max_target_length=32 "
    "per_device_batch_size=2 dataset_type=synthetic enable_goodput_recording=False dtype=float32 "
    "weight_dtype=float32 enable_checkpointing=False vocab_size=256"
)
SMALL = (
    "base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=2 head_dim=16 base_mlp_dim=96 "
    "base_num_decoder_layers=2"
)
OWN = f"model_name=default {SMALL}"
NAMED = "override_model_config=True"
MOE = "num_experts=4 num_experts_per_tok=2 base_moe_mlp_dim=96"
MLA = (
    "attention_type=mla kv_lora_rank=16 qk_nope_head_dim=12 qk_rope_head_dim=8 v_head_dim=20 "
    "first_num_dense_layers=1 shared_experts=1 base_num_decoder_layers=3 base_num_kv_heads=4"
)
GDN = (
    "gdn_key_head_dim=8 gdn_value_head_dim=8 gdn_num_key_heads=2 gdn_num_value_heads=4 "
    "gdn_chunk_size=8 partial_rotary_factor=0.5"
)
CYCLE_OF_4 = "inhomogeneous_layer_cycle_interval=4 base_num_decoder_layers=4"

MODELS: dict[str, str] = {
    "default": f"{OWN} decoder_block=default",
    "llama2": f"{OWN} decoder_block=llama2",
    "llama2_tied": f"{OWN} decoder_block=llama2 logits_via_embedding=True",
    "llama2_qk_norm": f"{OWN} decoder_block=llama2 use_qk_norm=True",
    "llama2_fused": f"{OWN} decoder_block=llama2 fused_qkv=True fused_mlp=True",
    "mistral": f"{OWN} decoder_block=mistral",
    "mixtral": f"{OWN} {MOE} decoder_block=mixtral",
    "mixtral_prefuse": f"{OWN} {MOE} decoder_block=mixtral prefuse_moe_weights=True",
    "qwen2": f"{OWN} decoder_block=qwen2 attention_bias=True",
    "qwen3": f"{OWN} decoder_block=qwen3 use_qk_norm=True",
    "qwen3_moe": f"{OWN} {MOE} decoder_block=qwen3_moe use_qk_norm=True",
    "qwen3_custom_moe": (
        f"{OWN} {MOE} decoder_block=qwen3_custom_moe use_qk_norm=True attention_output_dim=32 "
        "moe_expert_input_dim=32"
    ),
    "qwen3_next": f"{OWN} {MOE} {GDN} decoder_block=qwen3_next shared_experts=1 {CYCLE_OF_4}",
    "qwen3_5": (
        f"{NAMED} model_name=qwen3.5-35b-a3b {SMALL} {GDN} base_mlp_dim=48 base_moe_mlp_dim=48 "
        "num_experts=4 num_experts_per_tok=2 mrope_section=[2,1,1] use_multimodal=False "
        "base_num_decoder_layers=4"
    ),
    "gemma": f"{OWN} decoder_block=gemma logits_via_embedding=True",
    "gemma2": (
        f"{OWN} decoder_block=gemma2 logits_via_embedding=True use_post_attn_norm=True "
        "use_post_ffw_norm=True"
    ),
    "gemma3": f"{NAMED} model_name=gemma3-4b {SMALL} base_num_decoder_layers=7",
    "deepseek2": f"{OWN} {MOE} {MLA} decoder_block=deepseek q_lora_rank=0",
    "deepseek3": (
        f"{OWN} {MOE} {MLA} decoder_block=deepseek q_lora_rank=24 routed_score_func=sigmoid "
        "routed_bias=True mtp_num_layers=1"
    ),
    "kimi_k2": (
        f"{NAMED} model_name=kimi-k2-1t {SMALL} base_moe_mlp_dim=48 num_experts=16 "
        "base_num_decoder_layers=3 base_num_kv_heads=4 q_lora_rank=24 kv_lora_rank=16 "
        "qk_nope_head_dim=12 qk_rope_head_dim=8 v_head_dim=20"
    ),
    "deepseek4": (
        f"{NAMED} model_name=deepseek4-tiny base_num_decoder_layers=5 compress_ratios=[0,0,4,128,4]"
    ),
    "gpt_oss": (
        f"{NAMED} model_name=gpt-oss-20b {SMALL} base_mlp_dim=48 base_moe_mlp_dim=48 num_experts=4 "
        "base_num_decoder_layers=4"
    ),
    "gpt3": (
        f"{OWN} decoder_block=gpt3 base_num_kv_heads=4 trainable_position_size=32 "
        "logits_via_embedding=True"
    ),
    "llama4": (
        f"{OWN} {MOE} num_experts_per_tok=1 decoder_block=llama4 nope_layer_interval=4 "
        f"shared_experts=1 {CYCLE_OF_4}"
    ),
    "olmo3": f"{OWN} decoder_block=olmo3 use_qk_norm=True {CYCLE_OF_4}",
    "envy": f"{NAMED} model_name=envy-test",
}
CONFIG_KEYS = (
    "model_name",
    "decoder_block",
    "attention_type",
    "emb_dim",
    "num_query_heads",
    "num_kv_heads",
    "head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "param_scan_axis",
)


def configure(family, scan):
    # The last word on a key wins on MaxText's side only once, so keep one word per key.
    words = dict(word.split("=", 1) for word in f"{COMMON} {MODELS[family]}".split())
    words["scan_layers"] = scan
    base = os.path.join(MAXTEXT_PKG_DIR, "configs", "base.yml")
    return pyconfig.initialize(["", base, *(f"{key}={value}" for key, value in words.items())])


def tree_of(config):
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    _, model = model_creation_utils.create_nnx_abstract_model(config, mesh)
    _, params, _ = nnx.split(model, nnx.Param, ...)
    rows = {}
    for path, leaf in nnx.to_flat_state(params):
        metadata = leaf.get_metadata()
        names = (metadata.get(key) for key in ("sharding", "sharding_names", "out_sharding"))
        axes = next((list(value) for value in names if value is not None), None)
        rows["/".join(map(str, path))] = [list(leaf.get_value().shape), axes]
    return rows


def record(family):
    config = configure(family, True)
    values = {key: getattr(config, key) for key in CONFIG_KEYS}
    return {
        "config": {key: getattr(value, "value", value) for key, value in values.items()},
        "scan": tree_of(config),
        "unscan": tree_of(configure(family, False)),
    }


if __name__ == "__main__":
    print(json.dumps({family: record(family) for family in sys.argv[1:]}))
