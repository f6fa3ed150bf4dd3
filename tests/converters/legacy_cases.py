"""Damaged legacy checkpoints: name, sample, damage, and what the message must say."""

from __future__ import annotations

import torch

from . import hostile
from .legacy_damage import (
    WISE_1,
    Damage,
    compressed,
    content,
    cut,
    drop,
    duplicate,
    exchange,
    fill,
    flat,
    flipped,
    model,
    put,
    remove,
    rename,
    renamed,
    swap,
    swap_files,
    twice,
    without,
)
from .legacy_files import FLAT, MODEL, edit, flip

DENSE, BF16, FLAT4, EP2, WISE = (
    "dense_legacy",
    "bf16_legacy",
    "twins/adam_tp2pp2_legacy",
    "twins/adam_ep2_legacy",
    "twins/muon_layer_wise_legacy",
)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n"
ANNEX = b"/annex/objects/SHA256E-s4--00\n"
BUFFER = (0, (torch.float32, torch.float32))
MOMENT = ("optimizer", 0, "state", 3, "momentum_buffer")
ADAM = ("optimizer", 1, "state", 0)
MASTERS = ("optimizer", 0, "fp32_from_fp16_params", 0)
WISE_MOMENT = (0, "optimizer", "state", 0, "momentum_buffer")
NORM = "decoder.layers.0.input_layernorm.weight"
FC2 = "decoder.layers.1.mlp.linear_fc2.weight"

CASES: dict[str, tuple[str, Damage, str]] = {
    "no file": (DENSE, remove(f"mp_rank_00/{MODEL}"), f"{MODEL}.*missing"),
    "empty file": (DENSE, content(b""), f"{MODEL}.*archive"),
    "text": (DENSE, content(b"not a checkpoint"), f"{MODEL}.*archive"),
    "half a file": (DENSE, cut(lambda n: n // 2), f"{MODEL}.*copy it again"),
    "one byte short": (DENSE, cut(lambda n: n - 1), f"{MODEL}.*copy it again"),
    "only a header": (DENSE, cut(lambda _n: 100), f"{MODEL}.*copy it again"),
    "git lfs": (DENSE, content(POINTER), f"{MODEL}.*git lfs pull"),
    "git annex": (DENSE, content(ANNEX), f"{MODEL}.*git annex get"),
    "compressed": (DENSE, compressed, "compressed"),
    "no dictionary": (DENSE, content(hostile.saved([1, 2])), "no dictionary"),
    "bare pickle": (DENSE, content(b"\x80\x04N."), f"{MODEL}.*archive"),
    "weight flipped": (DENSE, flipped(lambda s: s["model"][FC2]), f"{MODEL}.*damaged"),
    "momentum flipped": (
        DENSE,
        flipped(lambda s: s["optimizer"][0]["state"][2]["momentum_buffer"]),
        f"{MODEL}.*damaged",
    ),
    "pickle flipped": (DENSE, lambda f: flip(f / "mp_rank_00" / MODEL, 300), MODEL),
    "directory flipped": (DENSE, lambda f: flip(f / "mp_rank_00" / MODEL, -40), MODEL),
    "no args": (DENSE, model(drop("args")), f"{MODEL}.*'args'"),
    "args of another kind": (DENSE, model(put("args", value={"a": 1})), f"{MODEL}.*'args'"),
    "old version": (DENSE, model(put("checkpoint_version", value=1.0)), "checkpoint_version"),
    "no version": (DENSE, model(drop("checkpoint_version")), "checkpoint_version"),
    "no iteration": (DENSE, model(drop("iteration")), "'iteration' is None"),
    "other iteration": (DENSE, model(put("iteration", value=21)), "iteration 21"),
    "no model": (DENSE, model(drop("model")), f"{MODEL}.*no 'model'"),
    "model before the core": (
        DENSE,
        model(lambda s: s.update(model={"language_model": {}})),
        "language_model.*convert.py",
    ),
    "second chunk": (DENSE, model(put("model1", value={})), "more model chunks"),
    "layer lost": (DENSE, model(without("decoder.layers.1.")), "num_layers is 2"),
    "first layer lost": (DENSE, model(without("decoder.layers.0.")), r"layers \[1\]"),
    "no embedding": (DENSE, model(without("embedding.")), "no embedding"),
    "no final norm": (DENSE, model(without("decoder.final")), "group of 5 parameters.*has 4"),
    "no end": (
        DENSE,
        model(lambda s: [without(k)(s) for k in ("decoder.final", "output_layer")]),
        "no decoder.final_layernorm",
    ),
    "weight lost": (DENSE, model(without(FC2)), "group of 8 parameters.*has 7"),
    "text for a weight": (DENSE, model(put("model", FC2, value="x")), f"{FC2}.*str"),
    "weight transposed": (
        DENSE,
        model(lambda s: s["model"].update({FC2: s["model"][FC2].T})),
        f"{FC2}.*shape",
    ),
    "weights exchanged": (
        DENSE,
        model(exchange(("model",), FC2, "decoder.layers.1.mlp.linear_fc1.weight")),
        "shape",
    ),
    "router among dense layers": (
        DENSE,
        model(renamed("1.mlp.linear_fc2", "1.mlp.experts.local_experts.0.linear_fc2")),
        "num_experts=None",
    ),
    "Adam lost": (DENSE, model(drop("optimizer", 1)), "7 parameters.*missing"),
    "Muon lost": (DENSE, model(drop("optimizer", 0)), "8 parameters.*missing"),
    "both lost": (DENSE, model(put("optimizer", value=[])), "no optimizer's state"),
    "text for the optimizer": (DENSE, model(put("optimizer", value="x")), "no optimizer's state"),
    "no groups": (DENSE, model(drop("optimizer", 0, "param_groups")), "no groups"),
    "no states": (DENSE, model(put("optimizer", 0, "state", value={})), "lacks the state"),
    "one state lost": (DENSE, model(drop("optimizer", 0, "state", 7)), "lacks the state"),
    "one state too many": (
        DENSE,
        model(lambda s: s["optimizer"][0]["state"].update({8: {}})),
        "9 states.*8",
    ),
    "one parameter forgotten": (
        DENSE,
        model(
            lambda s: (
                s["optimizer"][0]["param_groups"][0]["params"].pop(),
                s["optimizer"][0]["state"].pop(7),
            )
        ),
        "group of 7 parameters.*has 8",
    ),
    "states of other shapes": (
        DENSE,
        model(exchange(("optimizer", 0, "state"), 0, 1)),
        "linear_proj.*shape",
    ),
    "no second moment": (DENSE, model(drop(*ADAM, "exp_avg_sq")), "only.*embedding"),
    "unknown state": (DENSE, model(put(*ADAM, "max_exp_avg_sq", value=0)), "max_exp_avg_sq"),
    "state no tensor": (DENSE, model(put(*MOMENT, value=3)), "momentum_buffer.*int"),
    "SGD": (
        DENSE,
        model(lambda s: [s["optimizer"][1]["param_groups"][0].pop(k) for k in ("betas", "eps")]),
        "neither Muon's nor Adam's",
    ),
    "groups alike": (
        DENSE,
        model(put("optimizer", 1, "param_groups", 1, "wd_mult", value=1.0)),
        "group",
    ),
    "steps differ": (DENSE, model(put(*ADAM, "step", value=torch.tensor(7.0))), r"\[7, 20\]"),
    "step is no number": (
        DENSE,
        model(put(*ADAM, "step", value=torch.tensor(float("nan")))),
        "step is nan",
    ),
    "NaN in momentum": (DENSE, model(fill(float("nan"), *MOMENT)), "momentum_buffer.*nan"),
    "infinity in momentum": (DENSE, model(fill(float("inf"), *MOMENT)), "momentum_buffer.*inf"),
    "NaN in a moment": (DENSE, model(fill(float("nan"), *ADAM, "exp_avg")), "embedding.*nan"),
    "negative second moment": (
        DENSE,
        model(fill(-1.0, *ADAM, "exp_avg_sq")),
        "embedding.*exp_avg_sq",
    ),
    "NaN in a weight": (DENSE, model(fill(float("nan"), "model", FC2)), "linear_fc2.*nan"),
    "masters exchanged": (BF16, model(exchange(MASTERS, 0, 4)), "linear_proj.*fp32_param.*order"),
    "master changed": (BF16, model(fill(9.0, *MASTERS, 2)), "linear_fc1.*fp32_param.*order"),
    "master lost": (BF16, model(drop(*MASTERS, 7)), "7 fp32 masters.*8 parameters"),
    "masters of no group": (
        BF16,
        model(drop("optimizer", 1, "fp32_from_fp16_params", 1)),
        "2 groups and masters of 1",
    ),
    "no masters": (BF16, model(drop("optimizer", 0, "fp32_from_fp16_params")), "no master weight"),
    "rank lost": (FLAT4, remove("mp_rank_01_001"), "mp_rank_01_001"),
    "rank too many": (FLAT4, duplicate("mp_rank_01_001", "mp_rank_02_001"), "mp_rank_02_001"),
    "tensor ranks swapped": (FLAT4, swap("mp_rank_00_000", "mp_rank_01_000"), "swapped"),
    "stages swapped": (FLAT4, swap("mp_rank_00_000", "mp_rank_00_001"), "swapped|no embedding"),
    "names without stages": (
        FLAT4,
        rename("mp_rank_00_000", "mp_rank_00"),
        "mp_rank_00.*wrong set",
    ),
    "iterations mixed": (
        FLAT4,
        model(put("iteration", value=3), "mp_rank_01_000"),
        "mp_rank_01_000.*iteration 3",
    ),
    "runs mixed": (
        FLAT4,
        model(lambda s: vars(s["args"]).update(hidden_size=64), "mp_rank_01_001"),
        "mp_rank_01_001.*hidden_size=64",
    ),
    "wrong tensor size": (
        FLAT4,
        lambda f: [
            edit(d / MODEL, lambda s: vars(s["args"]).update(tensor_model_parallel_size=4))
            for d in f.iterdir()
        ],
        "missing.*mp_rank_0",
    ),
    "one stage instead of two": (
        FLAT4,
        lambda f: [
            edit(d / MODEL, lambda s: vars(s["args"]).update(pipeline_model_parallel_size=1))
            for d in f.iterdir()
        ],
        "wrong set of files",
    ),
    "norms differ": (
        FLAT4,
        model(fill(2.0, "model", NORM), "mp_rank_01_000"),
        "mp_rank_01_000.*input_layernorm.*differs",
    ),
    "no optimizer on one rank": (
        FLAT4,
        model(drop("optimizer"), "mp_rank_01_000"),
        "mp_rank_01_000.*no 'optimizer'",
    ),
    "no flat state": (FLAT4, remove(f"mp_rank_01_000/{FLAT}"), f"mp_rank_01_000/{FLAT}.*missing"),
    "flat state cut": (FLAT4, cut(lambda n: n // 2, FLAT), f"{FLAT}.*copy it again"),
    "flat pointer": (FLAT4, content(POINTER, FLAT), f"{FLAT}.*git lfs pull"),
    "flat empty": (FLAT4, content(b"", FLAT), f"{FLAT}.*archive"),
    "flat flipped": (
        FLAT4,
        flipped(lambda s: s[0][BUFFER[1]]["exp_avg"], FLAT),
        f"{FLAT}.*damaged",
    ),
    "flat of the other tensor rank": (
        FLAT4,
        swap_files(FLAT, "mp_rank_00_000", "mp_rank_01_000"),
        f"{FLAT}.*fp32_param.*fully-reshardable",
    ),
    "flat of the other stage": (
        FLAT4,
        swap_files(FLAT, "mp_rank_00_000", "mp_rank_00_001"),
        "elements|fp32_param",
    ),
    "flat of another iteration": (FLAT4, flat(fill(3.0, *BUFFER, "param")), "fp32_param"),
    "flat not coalesced": (FLAT4, flat(put("buckets_coalesced", value=False)), "coalesced"),
    "flat without a moment": (FLAT4, flat(drop(*BUFFER, "exp_avg_sq")), "keeps"),
    "flat of another dtype": (
        FLAT4,
        flat(lambda s: s.update({0: {(torch.bfloat16, torch.float32): s[0][BUFFER[1]]}})),
        "bfloat16",
    ),
    "flat cut in the middle": (
        FLAT4,
        flat(lambda s: s[0][BUFFER[1]].update(exp_avg=s[0][BUFFER[1]]["exp_avg"][:64])),
        "shapes",
    ),
    "flat shorter": (
        FLAT4,
        flat(
            lambda s: [
                s[0][BUFFER[1]].update({k: s[0][BUFFER[1]][k][:-64].clone()})
                for k in ("param", "exp_avg", "exp_avg_sq")
            ]
        ),
        "elements.*fully-reshardable",
    ),
    "second flat buffer": (FLAT4, flat(put(1, value={})), "buffers"),
    "NaN in a flat moment": (FLAT4, flat(fill(float("nan"), *BUFFER, "exp_avg_sq")), "nan"),
    "experts of one rank lost": (EP2, remove("mp_rank_00_001"), "mp_rank_00_001"),
    "expert lost": (
        EP2,
        model(without("decoder.layers.1.mlp.experts.local_experts.1."), "mp_rank_00_001"),
        "expert|buffer",
    ),
    "ranks of experts swapped": (EP2, swap("mp_rank_00_000", "mp_rank_00_001"), "swapped"),
    "layer-wise file lost": (WISE, remove(f"mp_rank_00/{WISE_1}"), f"{WISE_1}: missing"),
    "layer-wise files lost": (
        WISE,
        lambda f: [file.unlink() for file in f.glob("*/layer_wise*")],
        "layer_wise_optimizer_0.pt: missing",
    ),
    "layer-wise file too many": (
        WISE,
        lambda f: (f / "mp_rank_00" / "layer_wise_optimizer_2.pt").write_bytes(b""),
        "layer_wise_optimizer_2.pt: one too many",
    ),
    "layer-wise file twice": (WISE, twice, "rounds to no weight"),
    "layer-wise cut": (WISE, cut(lambda n: n // 3, WISE_1), f"{WISE_1}.*copy it again"),
    "layer-wise pointer": (WISE, content(POINTER, WISE_1), f"{WISE_1}.*git lfs pull"),
    "layer-wise of another iteration": (
        WISE,
        lambda f: edit(f / "mp_rank_00" / WISE_1, fill(3.0, 0, "fp32_from_fp16_params", 0, 0)),
        f"{WISE_1}.*rounds to no weight",
    ),
    "layer-wise NaN": (
        WISE,
        lambda f: edit(f / "mp_rank_00" / WISE_1, fill(float("nan"), *WISE_MOMENT)),
        "momentum_buffer.*nan",
    ),
    "layer-wise without masters": (
        WISE,
        lambda f: edit(f / "mp_rank_00" / WISE_1, drop(0, "fp32_from_fp16_params")),
        "0 fp32 masters",
    ),
    "layer-wise one optimizer lost": (
        WISE,
        lambda f: edit(f / "mp_rank_00" / WISE_1, drop(1)),
        "has the state of",
    ),
    "dense copies differ": (
        EP2,
        model(fill(2.0, "model", NORM), "mp_rank_00_001"),
        "mp_rank_00_001.*input_layernorm.*differs",
    ),
}
