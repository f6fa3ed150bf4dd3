"""Comments of MaxText that the migration makes wrong."""

from __future__ import annotations

import re

# No longer left at muon()'s default, or no longer taken from the AdamW keys.
_WIRED = ("nesterov", "ns_coeffs", "ns_steps")

_DEFAULTS = re.compile(r'(#.*?)(:? )((?:"\w+", )*"\w+") (uses? default)')
# Start of what a released comment says -> what is true now.
_RENEWED = (
    (
        '"mu_dtype", "adam_eps" are shared',
        '"mu_dtype" is shared by AdamW; "adam_eps" guards the AdamW branch only',
    ),
    ("If None, apply width scaling", "Factor of muon_scale_mode consistent_rms, else None."),
)
_MARKER = re.compile(r"[\s,;:(-]*\bTODO\(not-yet-wired\)[).:]*\s*")


def fresh_comment(comment: str) -> str:
    """A comment without what is wrong now: names said to be at their default, a marker."""
    found = _DEFAULTS.fullmatch(comment)
    if found is None:
        return f"#{_fresh(comment[1:])}" if comment.startswith("#") else comment
    head, separator, names, tail = found.groups()
    kept = [name for name in names.split(", ") if name.strip('"') not in _WIRED]
    return f"{head}{separator}{', '.join(kept)} {tail}" if kept else head


def fresh_text(text: str) -> str:
    """A description without what is wrong now."""
    return _fresh(text).strip() if _fresh(text) != text else text


def _fresh(text: str) -> str:
    for start, new in _RENEWED:
        if text.lstrip().startswith(start):
            return text[: len(text) - len(text.lstrip())] + new
    return _MARKER.sub(" ", text).rstrip() if "TODO(not-yet-wired)" in text else text
