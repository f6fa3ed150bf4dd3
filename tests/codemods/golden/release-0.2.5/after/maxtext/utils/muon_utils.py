"""Which axes of a parameter form a matrix."""

import collections.abc
from typing import Optional, Tuple

from flax import nnx
import jax
from maxtext.third_party.optax_muon import maxtext as megatron_muon
from maxtext.third_party.optax_muon.dimension_numbers import MuonDimensionNumbers as mdn


def _is_path_contain_any(tuples, path):
  return any(x in path for x in tuples)


# Kept from Muon wherever the name holds one of these.
EXCLUDED_SUBSTRINGS = (
    "scale",
    "embedding",
    "logits_dense",
    "post_beta",
    "pre_beta",
    "res_beta",
    "hc_base",
    "sinks",
    "tid2eid",
    "A_log",
    "dt_bias",
    "conv1d",
    "shared_expert_gate",
)

EXCLUDED_EXACT_SEGMENTS = {
    "bias",
}

ATTENTION_BLOCK_NAMES = (
    "self_attention",
    "full_attention",
    "attention",
    "self_attn",
    "attn",
    "attention_mla",
    "GptOssAttention",
)

ATTENTION_QKV_NAMES = (
    "query",
    "key",
    "value",
    "wq_b",
    "wkv_b",
    "wkv",
)

ATTENTION_OUT_NAMES = ("out",)

MOE_BLOCK_NAMES = (
    "MoeBlock_0",
    "moe_block",
    "routed_experts",
    "GptOssMlp",
    "routed_moe",
)


def transform_logic(
    path: Tuple[str, ...],
    shape: Optional[Tuple[int, ...]] = None,
    include_routers: bool = True,
    rules=None,
) -> Optional[mdn]:
  """Dimension numbers of the parameter at path, None for AdamW.

  Args:
    path: names from the root.
    shape: of the parameter.
    include_routers: whether routers are Muon's.
  """
  # The fork's rules come first; a path they do not know is left to the code below.
  if rules is not None:
    dimension_numbers = rules(path, shape)
    if dimension_numbers is not megatron_muon.UNKNOWN:
      return dimension_numbers

  # Vectors.
  if shape is not None and len(shape) < 2:
    return None

  if any(
      segment in EXCLUDED_EXACT_SEGMENTS
      or (segment.endswith("bias") and segment != "position_bias")
      or any(x in segment for x in EXCLUDED_SUBSTRINGS)
      for segment in path
  ):
    return None

  if _is_path_contain_any(MOE_BLOCK_NAMES, path) and not _is_path_contain_any(("shared_experts", "shared_expert"), path):
    if _is_path_contain_any(("wi", "wi_0", "wi_1", "wo", "gate_up_proj"), path):
      return mdn((-2,), (-1,))
    if _is_path_contain_any(("gate", "router"), path):
      return mdn((0,), (-1,)) if include_routers else None

  if "o_a_proj" in path:
    return mdn((-2,), (-1,))

  if _is_path_contain_any(ATTENTION_BLOCK_NAMES, path) and (shape is None or len(shape) > 2):
    if _is_path_contain_any(ATTENTION_QKV_NAMES, path):
      return mdn((0,), (-2, -1))
    if _is_path_contain_any(ATTENTION_OUT_NAMES, path):
      # Some models store heads and head_dim as one axis.
      if _is_path_contain_any(("self_attention", "GptOssAttention"), path) or (shape is not None and len(shape) == 4):
        return mdn((0, -2), (-1,))

  return mdn((0,), (-1,))


def get_transform_tree(tree, path=(), include_routers: bool = True, rules=None):
  """Walk a dictionary of parameters."""
  if isinstance(tree, (dict, collections.abc.Mapping)) or hasattr(tree, "items"):
    return {k: get_transform_tree(
        v, path=path + (k,), include_routers=include_routers, rules=rules
    ) for k, v in tree.items()}
  else:
    val_shape = getattr(getattr(tree, "value", tree), "shape", None)
    return transform_logic(path, shape=val_shape, include_routers=include_routers, rules=rules)


def get_muon_weight_dimension_numbers(model, config=None, verbose=False):
  """Dimension numbers in the shape of the model's parameters."""
  rules = None if config is None else megatron_muon.dimension_rules(config)
  include_routers = getattr(config, "muon_include_routers", True) if config is not None else True
  _, abstract_param, _ = nnx.split(model, nnx.Param, ...)

  def apply_transform_nnx(path: Tuple[jax.tree_util.KeyEntry, ...], leaf):
    path_strings = tuple(p.key for p in path if isinstance(p, jax.tree_util.DictKey))
    val = leaf.get_value() if hasattr(leaf, "get_value") else leaf
    return transform_logic(path_strings, shape=getattr(val, "shape", None), include_routers=include_routers, rules=rules)

  numbers = jax.tree_util.tree_map_with_path(apply_transform_nnx, nnx.to_pure_dict(abstract_param))
  if verbose:
    print(numbers)
  return nnx.State(numbers)
