"""Optimizers of a trainer."""

import jax

import optax
from optax.contrib._muon import muon as optax_muon
from maxtext.common.common_types import DecoderBlockType
from maxtext.optimizers.muon import muon as maxtext_muon
from maxtext.utils.muon_utils import get_muon_weight_dimension_numbers
from maxtext.utils.maxtext_muon_utils import get_maxtext_muon_weight_dimension_numbers


def get_optimizer(config, learning_rate_schedule, model=None, mesh=None):
  """Build what config.opt_type names."""
  if config.opt_type == "muon":
    muon_type = getattr(config, "muon_type", "optax_muon")
    if config.decoder_block == DecoderBlockType.DEEPSEEK4:
      ns_coeffs = [(3.0, -4.0, 2.0)] * 8
      ns_steps = 8
    else:
      ns_coeffs = (3.0, -4.0, 2.0)
      ns_steps = 5

    muon_kwargs = {
        # Shared parameters: "nesterov" uses default
        "learning_rate": learning_rate_schedule,
        "eps": config.adam_eps,
        "mu_dtype": config.mu_dtype,
        # Muon-specific parameters: "weight_decay_mask", "adaptive" uses default
        "beta": config.muon_beta,
        "weight_decay": config.muon_weight_decay,
        "consistent_rms": config.muon_consistent_rms,
        "ns_coeffs": ns_coeffs,
        "ns_steps": ns_steps,
        # AdamW-specific parameters
        "adam_b1": config.adam_b1,
        "adam_b2": config.adam_b2,
        "adam_eps_root": config.adam_eps_root,
        "adam_weight_decay": config.adam_weight_decay,
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
