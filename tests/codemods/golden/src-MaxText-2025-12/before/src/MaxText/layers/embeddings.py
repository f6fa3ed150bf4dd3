"""Embedding tables."""

import jax.numpy as jnp


def embed(tokens, table):
  return jnp.take(jnp.asarray(table, jnp.bfloat16), tokens, axis=0)


def attend_on_embedding(query, embedding_table, attend_dtype, config):
  """Logits of every query against the table."""
  del config
  return jnp.dot(query, jnp.asarray(embedding_table, jnp.bfloat16).T, preferred_element_type=attend_dtype)
