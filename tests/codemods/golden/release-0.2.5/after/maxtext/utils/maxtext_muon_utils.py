"""Dimension numbers that also carry the sharding: MuonDimensionNumbers."""

from flax import nnx
import jax
from maxtext.third_party.optax_muon import maxtext as megatron_muon
from maxtext.utils import muon_utils
from maxtext.utils import sharding as sharding_lib


def get_maxtext_muon_weight_dimension_numbers(model, config=None, mesh=None, verbose=False):
  """A tree of MuonDimensionNumbers in the shape of the model's parameters."""
  rules = None if config is None else megatron_muon.dimension_rules(config)
  include_routers = getattr(config, "muon_include_routers", True)
  if mesh is None:
    raise ValueError("mesh is needed")
  _, abstract_param, _ = nnx.split(model, nnx.Param, ...)
  shardings = sharding_lib.nnx_construct_named_sharding(abstract_param, mesh)

  def apply_transform_nnx(path, leaf, abs_leaf):
    path_strings = tuple(p.key for p in path if isinstance(p, jax.tree_util.DictKey))
    dim_num = muon_utils.transform_logic(
        path_strings, shape=getattr(abs_leaf, "shape", None), include_routers=include_routers, rules=rules
    )
    if dim_num is not None:
      sharding = getattr(leaf, "sharding", None)
      return dim_num._replace(sharding=sharding)
    return None

  return jax.tree.map_with_path(apply_transform_nnx, shardings, abstract_param)
