"""What no single key decides: loss averaging, the step that a schedule starts at, the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from converters.maxtext.plan import Plan
from converters.source import Source

from .row import Row, Verdict, argument_words

_NOT_REPRODUCED = " is not reproduced"


def computation_rows(source: Source, plan: Plan, given: Mapping[str, Any]) -> Iterator[Row]:
    """Rows about ``given``, the user's keys."""
    yield _loss_averaging(source.run.arguments)
    yield _step_offset(source, plan, given)
    yield from _not_reproduced(plan)
    yield _second_log_line()


def _loss_averaging(arguments: Mapping[str, Any]) -> Row:
    """Megatron averages micro-batches, or tokens; MaxText tokens."""
    per_token = bool(arguments.get("calculate_per_token_loss"))
    whole, micro = arguments.get("global_batch_size"), arguments.get("micro_batch_size")
    masked = bool(arguments.get("eod_mask_loss") or arguments.get("sft"))
    verdict: Verdict = "same"
    remedy = "MaxText averages over the tokens of the batch"
    if not per_token and whole != micro:
        verdict = "not reproduced" if masked else "note"
        remedy = "equal if every micro-batch has as many loss tokens; MaxText averages over tokens"
    names = ("calculate_per_token_loss", "micro_batch_size", "global_batch_size", "eod_mask_loss")
    words = [argument_words(arguments, (name,)) for name in names]
    return Row(
        "loss averaging",
        ", ".join(word for word in words if not word.startswith("no ")),
        "",
        "per token",
        "per token",
        "always",
        verdict,
        remedy,
    )


def _step_offset(source: Source, plan: Plan, given: Mapping[str, Any]) -> Row:
    """Both trainers count from 0; MaxText's schedule goes by the counts in the optimizer state."""
    other = "load_parameters_path"
    restarts = bool(given.get(other)) and plan.load_key != other and source.run.iteration > 0
    has_path = bool(given.get(plan.load_key))
    verdict: Verdict = "differs" if restarts else "same" if has_path else "note"
    remedy = f"{plan.load_key}=<the converted checkpoint>"
    if restarts:
        remedy += f": with {other} schedule, moments and counts start at step 0"
    return Row(
        "learning rate schedule",
        f"iteration={source.run.iteration}",
        plan.load_key,
        "the converted checkpoint",
        given.get(plan.load_key, given.get(other)),
        "given" if has_path or restarts else "not given",
        verdict,
        remedy,
    )


def _not_reproduced(plan: Plan) -> Iterator[Row]:
    """What the conversion says that MaxText does not compute."""
    for note in plan.notes:
        argument, found, why = note.partition(_NOT_REPRODUCED)
        if found:
            argument = argument.removesuffix(" and")
            topic = _TOPICS.get(argument.partition("=")[0].partition(" ")[0], "model")
            reason = why.lstrip(": ")
            yield Row(topic, argument, "", None, None, "", "not reproduced", reason)


_TOPICS = {
    "moe_z_loss_coeff": "z-loss",
    "moe_input_jitter_eps": "experts",
    "moe_expert_capacity_factor": "experts",
    "moe_router_pre_softmax": "experts",
    "hidden_dropout": "dropout",
    "attention_dropout": "dropout",
    "window_size": "attention softmax",
    "fp8": "dtypes",
    "fp4": "dtypes",
    "swiglu": "activations",
}


def _second_log_line() -> Row:
    return Row(
        "log",
        "the second line of the log after a start is the mean of the first two losses",
        "",
        None,
        None,
        "",
        "note",
        "compare losses of single steps, not of the log's second line",
    )
