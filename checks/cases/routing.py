"""Rung: who trains each parameter, and whether it decays, in every family, as Megatron has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from checks import megatron_models
from checks.result import Divergence, Outcome, Rung
from checks.setting import Case, Setting
from checks.sides import ours
from checks.sides.settled import Settled, settled
from checks.sides.state import parameter_of
from checks.tree import TREE
from converters.families.detect import named
from converters.families.family import Family
from converters.families.links import links
from converters.families.model import features_of, model_of
from converters.families.tables import FAMILIES
from converters.mapping import Leaf, prove
from muon_fork.decay_mask import decays
from muon_fork.model_dimensions import DECODER_BLOCKS, ModelDimensions
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from muon_fork.spec import MuonSpec

NAME = "routing"
TITLE = "Muon or AdamW, decay or none, for every parameter of every family"


@dataclass(frozen=True)
class Route:
    """One leaf: what the optimizer's rules say, and what Megatron does, in the same words."""

    model: str
    leaf: str
    parameter: str
    ours: str
    theirs: str


def run(setting: Setting) -> Rung:
    """Families that the converter knows, scanned and not, and the synthetic tree."""
    plan = settled(setting)
    own = plan.trap.spec(plan.spec)
    routes = [*_families(plan.spec, own), *_tree(setting, plan)]
    wrong = [route for route in routes if route.ours != route.theirs]
    details = {"routes": len(routes), "differences": [dataclasses.asdict(r) for r in wrong]}
    notes = (*plan.notes, _words(routes), *_without_table())
    if not wrong:
        return Rung(NAME, TITLE, Outcome.PASSED, notes=notes, details=details)
    first = wrong[0]
    words = f"{first.ours} here, {first.theirs} in Megatron ({first.parameter})"
    divergence = Divergence(NAME, None, f"{first.model}/{first.leaf}", "routing", words)
    reason = f"{len(wrong)} of {len(routes)} parameters are treated otherwise"
    return Rung(NAME, TITLE, Outcome.FAILED, (), divergence, reason, notes, details=details)


def _families(spec: MuonSpec, own: MuonSpec) -> Iterator[Route]:
    for name, arguments in megatron_models.MODELS.items():
        family, shapes = named(name), megatron_models.shapes(arguments)
        # MaxText 0.2.5 keeps the final norm of prediction layers.
        features = features_of(arguments, shapes) | {"mtp_final_norm"}
        model = model_of(family, arguments, features)
        for scan in (True, False) if family.scans else (False,):
            for leaf in prove(links(family, model, scan, shapes), shapes):
                if not leaf.is_buffer:
                    yield _route(family, leaf, model.dimensions, (spec, own), shapes)


def _route(
    family: Family,
    leaf: Leaf,
    dimensions: ModelDimensions,
    specs: tuple[MuonSpec, MuonSpec],
    shapes: megatron_models.Shapes,
) -> Route:
    spec, own = specs
    parameter = leaf.parts[0].link.parameter
    shape = shapes[parameter]
    answer = dimension_numbers_for(("params", *leaf.path), dimensions, own, leaf.shape)
    if answer is UNKNOWN:
        ours = "no rule knows it"
    else:
        muon = answer is not None and answer.optimizer == "muon"
        ours = _treatment(muon, decays(leaf.path, leaf.shape, own))
    is_router = parameter.endswith("router.weight") and not spec.include_routers
    muon = megatron_models.uses_muon(parameter, shape) and not (is_router or spec.adam_only)
    theirs = _treatment(muon, _decays(parameter, shape, spec))
    return Route(family.name, "/".join(leaf.path), parameter, ours, theirs)


def _treatment(muon: bool, decay: bool) -> str:
    """Muon's matrices all decay, so only AdamW's decay is a question."""
    return "Muon" if muon else f"AdamW, {'decays' if decay else 'does not decay'}"


def _decays(parameter: str, shape: tuple[int, ...], spec: MuonSpec) -> bool:
    """Megatron's rule for the AdamW branch: biases and whatever has one dimension do not."""
    if spec.decay_all_adam_params:
        return True
    suffix = parameter.rpartition("self_attention.")[2]
    if "norm" in parameter:
        per_head = suffix in ("q_layernorm.weight", "k_layernorm.weight")
        return spec.weight_decay_norm_params or (per_head and spec.apply_wd_to_qk_layernorm)
    return len(shape) > 1 and not parameter.endswith(".bias")


def _tree(setting: Setting, plan: Settled) -> Iterator[Route]:
    """Kinds that no convertible family has: gated attention, position tables, scaled embeddings."""
    side = ours.Ours(TREE, plan.spec, setting, setting.dtype, plan.trap)
    owner, shapes = ours.owners(side), ours.leaf_shapes(TREE)
    for leaf, parameter in parameter_of(TREE).items():
        path = leaf.split("/")[1:]
        here = _treatment(owner[leaf] == "muon", decays(path, shapes[leaf], side.own_spec))
        there = _treatment(parameter.muon(plan.spec), parameter.decays(plan.spec))
        yield Route("tree", leaf, parameter.name, here, there)


def _words(routes: list[Route]) -> str:
    models = dict.fromkeys(route.model for route in routes)
    return f"{len(routes)} parameters of {', '.join(models)}; scanned and not"


def _without_table() -> tuple[str, ...]:
    """Decoder blocks that Megatron has no counterpart of here."""
    known = {family.decoder_block for family in FAMILIES} | {p.model for p in TREE}
    missing = [block for block in DECODER_BLOCKS if block not in known]
    return (f"no Megatron model to compare with: decoder_block {', '.join(missing)}",)


CASE = Case(NAME, TITLE, ("quick", "full"), run)
