"""Switch the imports of optax's and MaxText's own Muon in ``optimizers.py`` to the fork.

    from optax.contrib._muon import muon as optax_muon
    -> from maxtext.third_party.optax_muon._muon import muon as optax_muon

Names stay as the file calls them, so calls and patches in tests need no change.
"""

from __future__ import annotations

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._imports import (
    fork_import,
    glue_edits,
    local_names,
    muon_imports,
    statement_edit,
)
from codemods.fixers._source import parse, splice


def apply(text: str, context: Context) -> str:
    """The text with every import of a Muon pointing to the fork."""
    source = parse(text)
    if not local_names(source, context, "muon"):
        raise AnchorNotFound("no top-level import of optax's or MaxText's own muon")
    edits = [*glue_edits(source, context)]
    for row in muon_imports(source, context):
        statements = [fork_import(context, name, local) for name, local in row.names]
        edits.append(statement_edit(source, row, statements))
    return splice(text, edits)


fixer = Fixer(
    name="optimizer_imports",
    role="optimizer",
    summary="import muon from the fork instead of optax or MaxText",
    apply=apply,
)
