"""A tied embedding keeps its precision as the output layer, in text and in arithmetic."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codemods.fixers.tied_logits import fixer
from tests.codemods.fixers.tools import (
    check_noop,
    check_refused,
    check_transformed,
    swap,
)

TABLE = "jnp.asarray(table, jnp.bfloat16).T"
TEXT = f'''\
import jax.numpy as jnp


def attend_on_embedding(
    hidden,
    table,
    attend_dtype,
):
  """Logits."""

  # bfloat16 is written elsewhere too: jnp.bfloat16
  return jnp.dot(
      hidden,
      {TABLE},
      preferred_element_type=attend_dtype,
  )


HALF = jnp.bfloat16
'''


def test_only_the_cast_changes() -> None:
    assert check_transformed(fixer, TEXT) == swap(TEXT, TABLE, "jnp.asarray(table, hidden.dtype).T")


def test_windows_line_ends_stay() -> None:
    text = TEXT.replace("\n", "\r\n")
    assert check_transformed(fixer, text).count("\r\n") == text.count("\r\n")


def test_a_function_at_the_end_without_a_newline() -> None:
    text = TEXT[: TEXT.index("\n\n\nHALF")]
    assert "hidden.dtype" in check_transformed(fixer, text)


def test_a_table_that_is_not_rounded_stays() -> None:
    check_noop(fixer, swap(TEXT, TABLE, "jnp.asarray(table, attend_dtype).T"))


def test_another_cast_is_refused() -> None:
    text = swap(TEXT, TABLE, "table.astype(jnp.bfloat16).T")
    check_refused(fixer, text, "table.astype", "in jnp.asarray only")


def test_no_function_is_refused() -> None:
    with pytest.raises(Exception, match="expected one function attend_on_embedding, found 0"):
        fixer.apply(TEXT.replace("attend_on", "attend_to"), None)  # type: ignore[arg-type]


def test_float32_keeps_its_digits_and_bfloat16_computes_what_it_did() -> None:
    released, migrated = _function(TEXT), _function(check_transformed(fixer, TEXT))
    generator = np.random.default_rng(0)
    hidden = jnp.asarray(generator.standard_normal((3, 16)), jnp.float32)
    table = jnp.asarray(generator.standard_normal((8, 16)), jnp.float32)
    exact = np.asarray(hidden, np.float64) @ np.asarray(table, np.float64).T
    with jax.default_matmul_precision("highest"):
        assert np.abs(migrated(hidden, table, jnp.float32) - exact).max() < 1e-5
        assert np.abs(released(hidden, table, jnp.float32) - exact).max() > 1e-3
    half = hidden.astype(jnp.bfloat16)
    same = [f(half, table, jnp.bfloat16) for f in (released, migrated)]
    assert np.array_equal(*(np.asarray(x, np.float32) for x in same))


def _function(text: str) -> Any:
    names: dict[str, Any] = {}
    exec(text, names)
    return names["attend_on_embedding"]
