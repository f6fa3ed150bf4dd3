"""Add ``get_adam_wd_mask(config)`` to ``optimizers.py``: who decays in the AdamW branch of Muon."""

from __future__ import annotations

import libcst as cst

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._imports import GLUE, glue_edits
from codemods.fixers._source import (
    Edit,
    Source,
    block,
    function,
    is_docstring,
    line_above,
    line_start,
    parse,
    splice,
)

NAME = "get_adam_wd_mask"

_FUNCTION = (
    f"def {NAME}(config):",
    '\t"""Decay mask of the AdamW branch of Muon.',
    "",
    "\tBiases never decay. Norm scales decay if `muon_weight_decay_norm_params`, query and key",
    "\tnorms also if `muon_apply_wd_to_qk_layernorm`. Embedding and output layer decay.",
    "",
    "\tArgs:",
    "\t\tconfig: MaxText configuration.",
    "",
    "\tReturns:",
    "\t\tA function from a parameter tree to a tree of bools, or None (everything decays) if",
    "\t\t`muon_decay_all_adam_params`.",
    '\t"""',
    f"\treturn {GLUE}.adam_weight_decay_mask(config)",
)


def apply(text: str, context: Context) -> str:
    """The text with the mask's function before ``get_optimizer``."""
    source = parse(text)
    anchor = function(source, "get_optimizer")
    if _is_present(source):
        return text
    start = line_start(text, source.start(anchor))
    start = _above_comments(text, start)
    lines = (line.replace("\t", source.indent) for line in (*_FUNCTION, "", "", ""))
    new = source.newline.join(lines)
    return splice(text, [*glue_edits(source, context), Edit(start, start, new)])


def _is_present(source: Source) -> bool:
    for node in source.module.body:
        if isinstance(node, cst.FunctionDef) and node.name.value == NAME:
            body = [s for s in block(node, source) if not is_docstring(s)]
            if len(body) != 1 or f"{GLUE}.adam_weight_decay_mask(" not in source.code(body[0]):
                raise AnchorNotFound(
                    f"{NAME} is this checkout's own: rename it, the migration adds one",
                    source.line(node),
                )
            return True
    return False


def _above_comments(text: str, start: int) -> int:
    """Start of the comment lines that stand directly above ``start``, decorators included."""
    while start:
        above = line_above(text, start)
        if not text[above:start].startswith(("#", "@")):
            break
        start = above
    return start


fixer = Fixer(
    name="adam_wd_mask",
    role="optimizer",
    summary="add get_adam_wd_mask(config), the decay mask of the AdamW branch",
    apply=apply,
)
