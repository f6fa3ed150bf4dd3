"""Dimension numbers that also carry the sharding: ShardedMuonDimensionNumbers."""

from flax import nnx
import jax
from maxtext.optimizers.muon import ShardedMuonDimensionNumbers as smdn
from maxtext.utils import muon_utils
from maxtext.utils import sharding as sharding_lib


def get_maxtext_muon_weight_dimension_numbers(model, config=None, mesh=None, verbose=False):
  """A tree of ShardedMuonDimensionNumbers in the shape of the model's parameters."""
  if mesh is None:
    raise ValueError("mesh is needed")
  _, abstract_param, _ = nnx.split(model, nnx.Param, ...)
  shardings = sharding_lib.nnx_construct_named_sharding(abstract_param, mesh)

  def apply_transform_nnx(path, leaf, abs_leaf):
    path_strings = tuple(p.key for p in path if isinstance(p, jax.tree_util.DictKey))
    dim_num = muon_utils.transform_logic(path_strings, shape=getattr(abs_leaf, "shape", None))
    if dim_num is not None:
      sharding = getattr(leaf, "sharding", None)
      return smdn(
          reduction_axis=dim_num.reduction_axis,
          output_axis=dim_num.output_axis,
          sharding=sharding,
      )
    return None

  return jax.tree.map_with_path(apply_transform_nnx, shardings, abstract_param)
