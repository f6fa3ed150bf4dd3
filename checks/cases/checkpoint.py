"""Rung: a converted checkpoint holds the source's weights, momentum, moments and counts."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from checks import megatron_models, parameters
from checks.measure import measure
from checks.parameters import HEAD_DIM, HEADS, HIDDEN, Kind, Parameter
from checks.references.matrices import Array
from checks.result import Divergence, Figure, Outcome, Rung
from checks.setting import Case, Setting
from checks.sides import gaps
from checks.tolerances import limit
from converters.source import Key, Source, SourceTensor, State

NAME = "checkpoint"
TITLE = "a converted checkpoint = its source"
_ITERATION = 7
_NNX = ("opt_state", "inner_states")
_FOLD = HEAD_DIM**-0.5
# Where each state of a parameter lies in MaxText's tree.
_PLACES = {
    State.WEIGHT: ("params", "params"),
    State.MOMENTUM: (*_NNX, "muon", "inner_state", "0", "mu"),
    State.EXP_AVG: (*_NNX, "adam", "inner_state", "0", "mu"),
    State.EXP_AVG_SQ: (*_NNX, "adam", "inner_state", "0", "nu"),
}
_COUNTS = tuple((*_NNX, who, "inner_state", "0", "count") for who in ("muon", "adam"))


def run(setting: Setting) -> Rung:
    """A model whose query is stored scaled, with experts: written by Orbax and read back."""
    try:
        import orbax.checkpoint  # noqa: F401
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed: install the toolkit with [orbax]"
        return Rung(NAME, TITLE, Outcome.NOT_RUN, reason=reason)
    models = {"mixtral": True} if setting.level == "quick" else {"mixtral": True, "llama": False}
    figures: list[Figure] = []
    for model, scan in models.items():
        setting.progress(f"{NAME}: {model}, {'scanned' if scan else 'layers apart'}")
        figures += _figures(model, scan)
    wrong = [figure for figure in figures if not figure.passed]
    if not wrong:
        return Rung(NAME, TITLE, Outcome.PASSED, tuple(figures))
    first = max(wrong, key=gaps.excess)
    gap = first.difference
    detail = f"{first.subject}: RMS ratio {gap.rms_ratio:.6g}, relative L2 {gap.relative_l2:.1e}"
    divergence = Divergence(NAME, None, first.parameter, "state", detail)
    return Rung(NAME, TITLE, Outcome.FAILED, tuple(figures), divergence)


def _figures(model: str, scan: bool) -> Iterator[Figure]:
    from converters.maxtext.plan import Options, plan_target
    from converters.orbax.reader import open_saved
    from converters.orbax.writer import write_state

    source = source_of(megatron_models.MODELS[model])
    plan = plan_target(source, Options(scan=scan))
    with tempfile.TemporaryDirectory() as scratch:
        write_state(plan.state, Path(scratch).resolve())
        saved = open_saved(Path(scratch))
        for path, expected, what in expectations(source, model, scan):
            found = saved.tensors[path].read()
            leaf = "/".join(path[len(_PLACES[what]) :])
            yield _figure(f"{what.value}, {model}", found, expected, leaf)
        for path in _COUNTS:
            held = saved.tensors[path].read()
            yield _figure(f"count, {model}", held, np.asarray(_ITERATION), "/".join(path[2:]))


def _figure(subject: str, found: Array, expected: Array, leaf: str) -> Figure:
    gap = measure(found, expected)
    return Figure(subject, gap, NAME, limit(NAME), "relative_l2", leaf, floor=0.0)


def source_of(arguments: megatron_models.Arguments) -> Source:
    """An open checkpoint in memory, values random and the same for equal keys."""
    from converters.megatron.run import OptimizerState, Run

    tensors = {
        Key(name, state): _tensor(_random(Key(name, state), shape))
        for name, shape in megatron_models.shapes(arguments).items()
        for state in _states(name, shape)
    }
    optimizers = (OptimizerState((), None), OptimizerState((), _ITERATION))
    run = Run(arguments, _ITERATION, optimizers, {})
    return Source(Path(f"iter_{_ITERATION:07}"), "torch_dist", run, tensors, None, ())


def _states(name: str, shape: tuple[int, ...]) -> tuple[State, ...]:
    muon = megatron_models.uses_muon(name, shape)
    return (State.WEIGHT, *((State.MOMENTUM,) if muon else (State.EXP_AVG, State.EXP_AVG_SQ)))


def _tensor(array: Array) -> SourceTensor:
    return SourceTensor(array.shape, array.dtype, ("memory",), lambda: array)


def _random(key: Key, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(zlib.crc32(str(key).encode()))
    values: Array = rng.standard_normal(shape).astype(np.float32)
    return np.square(values) if key.state is State.EXP_AVG_SQ else values


def expectations(
    source: Source, model: str, scan: bool
) -> Iterator[tuple[tuple[str, ...], Array, State]]:
    """Where each leaf must lie, and what it must hold, said without the converter's tables."""
    layers = int(source.run.arguments["num_layers"])
    for what, place in _PLACES.items():
        for parameter in _outer():
            for leaf, array in _leaves(source, parameter, "", what):
                yield (*place, *leaf.split("/")), array, what
        for parameter in _inner(model):
            found = [
                dict(_leaves(source, parameter, f"decoder.layers.{n}.", what))
                for n in range(layers)
            ]
            for leaf in found[0]:
                path = (*place, *leaf.split("/"))
                if scan:
                    yield _scanned(path), np.stack([layer[leaf] for layer in found], 1), what
                else:
                    for n, layer in enumerate(found):
                        yield _numbered(path, n), layer[leaf], what


def _scanned(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("layers" if name == "layers_0" else name for name in path)


def _numbered(path: tuple[str, ...], layer: int) -> tuple[str, ...]:
    return tuple(f"layers_{layer}" if name == "layers_0" else name for name in path)


def _leaves(
    source: Source, parameter: Parameter, prefix: str, what: State
) -> Iterator[tuple[str, Array]]:
    """States keep the source's units; only a weight is stored scaled."""
    tensor = source.tensors.get(Key(prefix + parameter.name.partition("/")[2], what))
    if tensor is None:
        return
    for leaf, array in parameter.leaves(tensor.load()).items():
        fold = parameter.folds.get(leaf, 1.0) if what is State.WEIGHT else 1.0
        yield leaf.partition("/")[2], np.asarray(array, np.float64) * fold


def _outer() -> tuple[Parameter, ...]:
    table = (parameters.VOCABULARY, HIDDEN)
    return (
        parameters.as_it_is(
            "m/embedding.word_embeddings.weight",
            "token_embedder/embedding",
            table,
            Kind.EMBEDDING,
        ),
        parameters.plain(
            "m/output_layer.weight", "decoder/logits_dense/kernel", *table, Kind.EMBEDDING
        ),
        _norm("decoder.final_layernorm.weight", "decoder/decoder_norm/scale"),
    )


def _inner(model: str) -> tuple[Parameter, ...]:
    """One layer, under the path of the first."""
    layer = "decoder/layers_0"
    attention = f"{layer}/self_attention"
    shared = (
        _norm("input_layernorm.weight", f"{layer}/pre_self_attention_layer_norm/scale"),
        _norm("pre_mlp_layernorm.weight", f"{layer}/post_self_attention_layer_norm/scale"),
        parameters.qkv("m/self_attention.linear_qkv.weight", attention, _FOLD),
        parameters.from_heads(
            "m/self_attention.linear_proj.weight", f"{attention}/out/kernel", HEADS, HEAD_DIM
        ),
    )
    if model == "llama":
        mlp = f"{layer}/mlp"
        fc2 = parameters.plain(
            "m/mlp.linear_fc2.weight", f"{mlp}/wo/kernel", HIDDEN, parameters.FFN
        )
        return (*shared, parameters.fc1("m/mlp.linear_fc1.weight", mlp), fc2)
    block = f"{layer}/MoeBlock_0"
    router = (f"{block}/gate/kernel", parameters.EXPERTS, HIDDEN, Kind.ROUTER)
    return (
        *shared,
        parameters.plain("m/mlp.router.weight", *router),
        parameters.experts_fc1("m/mlp.experts.linear_fc1.weight", block),
        parameters.experts_fc2("m/mlp.experts.linear_fc2.weight", block),
    )


def _norm(name: str, path: str) -> Parameter:
    return parameters.as_it_is(f"m/{name}", path, (HIDDEN,), Kind.NORM)


CASE = Case(NAME, TITLE, ("quick", "full"), run)
