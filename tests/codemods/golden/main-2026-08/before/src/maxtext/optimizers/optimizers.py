"""Optimizers of a trainer."""

import jax

import optax
from optax.contrib._muon import muon
from maxtext.common.common_types import DecoderBlockType
from maxtext.utils.muon_utils import get_muon_weight_dimension_numbers


def get_adamw_mask(config):
  """Which parameters AdamW leaves alone."""
  return None


def get_optimizer(config, learning_rate_schedule, model=None):
  """Build what config.opt_type names."""
  if config.opt_type == "sgd":
    return optax.sgd(learning_rate_schedule)
  elif config.opt_type == "muon":
    if model is None:
      raise ValueError("Muon needs the model.")
    muon_weight_dimension_numbers = get_muon_weight_dimension_numbers(model, config)

    # Later decoders polish the spectrum.
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
        "muon_weight_dimension_numbers": muon_weight_dimension_numbers,
        "consistent_rms": config.muon_consistent_rms,
        "ns_coeffs": ns_coeffs,
        "ns_steps": ns_steps,
        # AdamW-specific parameters
        "adam_b1": config.adam_b1,
        "adam_b2": config.adam_b2,
        "adam_eps_root": config.adam_eps_root,
        "adam_weight_decay": config.adam_weight_decay,
    }
    base_opt = muon(**muon_kwargs)  # pyrefly: ignore[bad-argument-type]
  else:
    raise ValueError(f"{config.opt_type=} is unknown.")
  return base_opt
