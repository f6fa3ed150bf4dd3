"""Hand ``muon()`` what the configuration's MuonSpec says.

In ``get_optimizer``'s dictionary the entries that MaxText fixes in code (eps, coefficients, steps)
go, everything else stays, and the spec's own entries come last so that they win.
"""

from __future__ import annotations

import re

import libcst as cst

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._comments import fresh_comment
from codemods.fixers._imports import GLUE, glue_edits
from codemods.fixers._kwargs import MuonKwargs, find_kwargs, key_of
from codemods.fixers._source import (
    Edit,
    Source,
    line_end,
    line_start,
    parse,
    rest_of_line,
    splice,
)
from codemods.fixers.adam_wd_mask import NAME as MASK_FUNCTION
from muon_fork.config_keys import CONFIG_KEYS
from muon_fork.spec import MuonSpec

MASK_KEY = "adam_weight_decay_mask"

# What released MaxText gives these entries; the spec has fields of its own for them.
_REPLACED = {
    "eps": ("{config}.adam_eps",),
    "ns_coeffs": ("ns_coeffs",),
    "ns_steps": ("ns_steps",),
}
# Keywords of muon() whose field of the spec has another name.
_FIELDS = {
    "eps": "ns_eps",
    "eps_mode": "ns_eps_mode",
    "ns_coeffs": "coefficient_type",
    "ns_steps": "num_ns_steps",
}


def apply(text: str, context: Context) -> str:
    """The text whose keyword arguments end in the mask and the spec's own."""
    source = parse(text)
    kwargs = find_kwargs(source, context)
    if _is_applied(source, kwargs):
        return text
    for later in kwargs.later:
        _refuse_settled(source, kwargs, later)
    edits = [*glue_edits(source, context), *_removals(source, kwargs)]
    edits += _fresh_comments(source, kwargs.literal)
    edits += _additions(source, kwargs)
    return splice(text, edits)


def _is_applied(source: Source, kwargs: MuonKwargs) -> bool:
    call = f"{GLUE}.muon_kwargs("
    for element in kwargs.literal.elements:
        if isinstance(element, cst.StarredDictElement):
            if not source.code(element.value).startswith(call):
                raise AnchorNotFound(
                    "unknown ** entry: write its keys out", source.line(element.value)
                )
            if element is not kwargs.literal.elements[-1]:
                raise AnchorNotFound(
                    f"{call}...) must be the last entry: move it", source.line(element.value)
                )
            return True
    return False


def _settled(kwargs: MuonKwargs) -> dict[str, str]:
    """Keyword of ``muon()`` -> the expression that reads its configuration key."""
    keys = {row.field: row.key for row in CONFIG_KEYS}
    return {
        name: f"{kwargs.config}.{keys[_FIELDS.get(name, name)]}"
        for name in MuonSpec().muon_kwargs()
    }


def _refuse_settled(source: Source, kwargs: MuonKwargs, later: cst.Dict) -> None:
    for element in later.elements:
        key = key_of(element, source)
        if key is None or key in _settled(kwargs):
            raise AnchorNotFound(
                f"{key or '**'} is merged over what the spec settles", source.line(later)
            )


def _removals(source: Source, kwargs: MuonKwargs) -> list[Edit]:
    settled, edits = _settled(kwargs), []
    for element in kwargs.literal.elements:
        key = key_of(element, source)
        assert isinstance(element, cst.DictElement)
        assert key is not None
        value = " ".join(source.code(element.value).split())
        if key in _REPLACED and value in {v.format(config=kwargs.config) for v in _REPLACED[key]}:
            edits.append(_removal(source, element))
        elif key == MASK_KEY or (key in settled and value != settled[key]):
            hint = settled.get(key, MASK_FUNCTION)
            raise AnchorNotFound(
                f"{key!r}: {value} would be overridden by {hint}: remove the entry",
                source.line(element.key),
            )
    return edits


def _removal(source: Source, element: cst.DictElement) -> Edit:
    """Take out an entry that has its lines to itself; a comment behind it stays."""
    text, start, end = source.text, source.start(element.key), source.end(element.value)
    tail = re.fullmatch(r"[ \t]*,?[ \t]*(#.*)?", rest_of_line(text, end))
    if source.margin(element.key).strip() or tail is None:
        raise AnchorNotFound("expected each entry on a line of its own", source.line(element.key))
    if tail[1] is not None:
        return Edit(start, end + tail.start(1), "")
    return Edit(line_start(text, start), line_end(text, end), "")


def _fresh_comments(source: Source, literal: cst.Dict) -> list[Edit]:
    start, end = source.start(literal), source.end(literal)
    edits = []
    for found in re.finditer(r"^[ \t]*(#[^\r\n]*)", source.text[start:end], re.MULTILINE):
        new = fresh_comment(found[1])
        if new != found[1]:
            edits.append(Edit(start + found.start(1), start + found.end(1), new))
    return edits


def _additions(source: Source, kwargs: MuonKwargs) -> list[Edit]:
    if not kwargs.literal.elements:
        raise AnchorNotFound(f"{kwargs.name} is empty", source.line(kwargs.literal))
    last = kwargs.literal.elements[-1]
    assert isinstance(last, cst.DictElement)
    text, brace = source.text, source.end(kwargs.literal) - 1
    at = line_start(text, brace)
    if text[at:brace].strip() or source.margin(last.key).strip():
        raise AnchorNotFound(
            f"expected the entries and the closing brace of {kwargs.name} on lines of their own",
            source.line(kwargs.literal),
        )
    edits = [] if isinstance(last.comma, cst.Comma) else [_insertion(source.end(last.value), ",")]
    given = kwargs.config if kwargs.model is None else f"{kwargs.config}, {kwargs.model}"
    lines = (
        "# What the configuration's MuonSpec settles; it wins over the entries above.",
        f'"{MASK_KEY}": {MASK_FUNCTION}({kwargs.config}),',
        f"**{GLUE}.muon_kwargs({given}),",
    )
    margin, newline = source.margin(last.key), source.newline
    return [*edits, _insertion(at, "".join(f"{margin}{line}{newline}" for line in lines))]


def _insertion(at: int, new: str) -> Edit:
    return Edit(at, at, new)


fixer = Fixer(
    name="muon_kwargs",
    role="optimizer",
    summary="hand muon() the configuration's MuonSpec and the decay mask",
    apply=apply,
)
