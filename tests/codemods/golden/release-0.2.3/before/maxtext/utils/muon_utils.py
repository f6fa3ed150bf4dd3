"""Which axes of a parameter form a matrix."""

import sys
from typing import Optional, Tuple

from flax import nnx
import jax
from maxtext.utils import maxtext_utils
from optax.contrib._muon import MuonDimensionNumbers as mdn


def _is_path_contain_any(tuples, path):
  return any(x in path for x in tuples)


def transform_logic(path: Tuple[str, ...]) -> Optional[mdn]:
  """Dimension numbers of the parameter at path, None for AdamW."""

  # Vectors and embeddings.
  if _is_path_contain_any(("scale", "bias", "embedding", "logits_dense"), path):
    return None

  # Experts: (expert, layer, in, out).
  if "MoeBlock_0" in path:
    if _is_path_contain_any(("wi_0", "wi_1", "wo"), path):
      return mdn((-2,), (-1,))

  # Attention: heads stay apart from head_dim.
  elif "self_attention" in path:
    if "out" in path:
      return mdn((0, -2), (-1,))
    elif _is_path_contain_any(("query", "key", "value", "wq_b", "wkv_b"), path):
      return mdn((0,), (-2, -1))

  return mdn((0,), (-1,))


def get_transform_tree(tree, path=()):
  """Walk a dictionary of parameters."""
  if isinstance(tree, dict):
    return {k: get_transform_tree(v, path + (k,)) for k, v in tree.items()}
  else:
    return transform_logic(path)


def get_muon_weight_dimension_numbers(model, config, verbose=False):
  """Dimension numbers in the shape of the model's parameters."""

  if isinstance(model, nnx.Module):
    _, abstract_param, _ = nnx.split(model, nnx.Param, ...)

    def apply_transform_nnx(path: Tuple[jax.tree_util.KeyEntry, ...], leaf):
      path_strings = tuple(p.key for p in path if isinstance(p, jax.tree_util.DictKey))
      return transform_logic(path_strings)

    numbers = jax.tree_util.tree_map_with_path(apply_transform_nnx, abstract_param)
  else:
    abstract_param = maxtext_utils.get_abstract_param(model, config)
    numbers = get_transform_tree(abstract_param)
  if verbose:
    print(numbers)
  return numbers


if __name__ == "__main__":
  print(get_muon_weight_dimension_numbers(sys.argv[1], None, verbose=True))
