"""Optimizers of a trainer."""

import jax

import optax
from maxtext.third_party.optax_muon import maxtext as megatron_muon
from maxtext.third_party.optax_muon._muon import muon as optax_muon
from maxtext.third_party.optax_muon._muon import muon as maxtext_muon
from maxtext.utils.muon_utils import get_muon_weight_dimension_numbers
from maxtext.utils.maxtext_muon_utils import get_maxtext_muon_weight_dimension_numbers


def get_adam_wd_mask(config):
  """Decay mask of the AdamW branch of Muon.

  Biases never decay. Norm scales decay if `muon_weight_decay_norm_params`, query and key
  norms also if `muon_apply_wd_to_qk_layernorm`. Embedding and output layer decay.

  Args:
    config: MaxText configuration.

  Returns:
    A function from a parameter tree to a tree of bools, or None (everything decays) if
    `muon_decay_all_adam_params`.
  """
  return megatron_muon.adam_weight_decay_mask(config)


def get_optimizer(config, learning_rate_schedule, model=None, mesh=None):
  """Build what config.opt_type names."""
  if config.opt_type == "muon":
    muon_type = getattr(config, "muon_type", "optax_muon")

    muon_kwargs = {
        # Shared parameters
        "learning_rate": learning_rate_schedule,
        "mu_dtype": config.mu_dtype,
        # Muon-specific parameters: "weight_decay_mask", "adaptive" uses default
        "beta": config.muon_beta,
        "weight_decay": config.muon_weight_decay,
        "consistent_rms": config.muon_consistent_rms,
        # AdamW-specific parameters
        "adam_b1": config.adam_b1,
        "adam_b2": config.adam_b2,
        "adam_eps_root": config.adam_eps_root,
        "adam_weight_decay": config.adam_weight_decay,
        # What the configuration's MuonSpec settles; it wins over the entries above.
        "adam_weight_decay_mask": get_adam_wd_mask(config),
        **megatron_muon.muon_kwargs(config, model),
    }

    if muon_type == "optax_muon":
      muon_weight_dimension_numbers = get_muon_weight_dimension_numbers(model, config)
      muon_kwargs = muon_kwargs | {"muon_weight_dimension_numbers": muon_weight_dimension_numbers}
      base_opt = optax_muon(**muon_kwargs)  # pyrefly: ignore[bad-argument-type]
    else:
      muon_weight_dimension_numbers = get_maxtext_muon_weight_dimension_numbers(model, config, mesh=mesh)
      use_all_to_all = getattr(config, "muon_use_all_to_all", True)
      muon_kwargs = muon_kwargs | {
          "muon_weight_dimension_numbers": muon_weight_dimension_numbers,
          "use_all_to_all": use_all_to_all,
      }
      base_opt = maxtext_muon(**muon_kwargs)  # pyrefly: ignore[bad-argument-type]
    return base_opt
  raise ValueError(f"{config.opt_type=} is unknown.")
