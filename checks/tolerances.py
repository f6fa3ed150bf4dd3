"""Every numeric limit of the tests and commands, with the measurement that justifies it.

A row is raised only together with a new measurement in its reason.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """A limit on an absolute difference (or on a ratio, where the reason says so)."""

    name: str
    limit: float
    reason: str


TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(
        "alike_update_f64",
        1e-12,
        "Relative L2 between two ways of computing one update: stacked, scanned or "
        "sharded against plain. Measured 1.5e-15, as far as one unit in the last place of "
        "the inputs moves it.",
    ),
    Tolerance(
        "alike_state_f64",
        1e-13,
        "Relative L2 of momentum and moments. Measured 2.2e-16.",
    ),
    Tolerance(
        "alike_weight_f64",
        1e-13,
        "|weight|. Measured 1.7e-16.",
    ),
    Tolerance(
        "alike_update_f32",
        1e-05,
        "The same update computed in another way: in stacks, sharded, or scanned. Measured 7.9e-7, "
        "as far as one unit in the last place of the inputs moves it.",
    ),
    Tolerance(
        "alike_state_f32",
        1e-06,
        "Momentum and moments of the same update computed in another way. Measured 8.0e-8.",
    ),
    Tolerance(
        "alike_weight_f32",
        1e-06,
        "|weight| of the same update computed in another way. Measured 8.9e-8.",
    ),
    Tolerance(
        "alike_update_bf16",
        0.05,
        "Measured 8.7e-8 stacked and scanned; a sum in another order may tip a rounding, "
        "whose unit is 3.9e-3, and one step of Newton-Schulz multiplies it.",
    ),
    Tolerance(
        "alike_state_bf16",
        1e-06,
        "Buffers are float32 then too. Measured 8.0e-8.",
    ),
    Tolerance(
        "alike_weight_bf16",
        0.01,
        "Measured 4.1e-11; as much above the update's limit as the learning rate makes it.",
    ),
    Tolerance(
        "checkpoint",
        1e-07,
        "Relative L2. Measured 2.5e-8 on a query kernel, which is multiplied by "
        "1/sqrt(head_dim) in float32; 0 on everything else.",
    ),
    Tolerance(
        "newton_schulz_f64",
        1e-12,
        "Relative L2 of one matrix, spectrum decaying over three decades the worst, in "
        "float64. Measured 6.8e-15, one unit in the last place of the input moves it by "
        "1.2e-14; ten steps multiply more.",
    ),
    Tolerance(
        "newton_schulz_f32",
        2e-05,
        "Newton-Schulz in float32, against float64 and emerging-optimizers. Measured 2.8e-6; "
        "one unit in the last place of the input moves it by 6.7e-6.",
    ),
    Tolerance(
        "newton_schulz_bf16",
        0.2,
        "Newton-Schulz in bfloat16, whose unit in the last place is 3.9e-3, against "
        "float64. Measured 9.4e-2 on the decaying spectrum, 1e-2 on others.",
    ),
    Tolerance(
        "newton_schulz_bf16_released",
        0.02,
        "Newton-Schulz in bfloat16, against emerging-optimizers. Measured 0, bit for bit; a "
        "sum in another order would tip roundings of 3.9e-3.",
    ),
    Tolerance(
        "step_update_f64",
        1e-10,
        "Relative L2 of one update of every kind of parameter. Measured 1.9e-13: the "
        "reference's is a difference of weights near 1.",
    ),
    Tolerance(
        "step_state_f64",
        1e-12,
        "Momentum and moments after one step, relative L2. Measured 2.3e-16.",
    ),
    Tolerance(
        "step_weight_f64",
        1e-12,
        "|weight| after one step. Measured 2.2e-16.",
    ),
    Tolerance(
        "step_update_f32",
        2e-05,
        "Relative L2 of one update. Measured 7.4e-6 in AdamW, whose 1 - b^t is rounded "
        "to float32 at t = 8, and 6e-7 in Muon.",
    ),
    Tolerance(
        "step_state_f32",
        1e-06,
        "Relative L2 of momentum and moments after one step. Measured 1.1e-7, as far as "
        "one unit in the last place of the inputs moves it.",
    ),
    Tolerance(
        "step_weight_f32",
        1e-06,
        "|weight| after one step. Measured 9.3e-8.",
    ),
    Tolerance(
        "step_update_bf16",
        0.05,
        "Newton-Schulz in bfloat16 against float64. Measured 1.0e-2.",
    ),
    Tolerance(
        "step_state_bf16",
        1e-06,
        "Buffers are float32 then too. Measured 1.1e-7.",
    ),
    Tolerance(
        "step_weight_bf16",
        0.005,
        "Measured 1.0e-3, at a learning rate of 0.02.",
    ),
    Tolerance(
        "trajectory_update_f64",
        1e-10,
        "Relative L2 of an update at its worst step. Measured 1.5e-12 over 1000 steps.",
    ),
    Tolerance(
        "trajectory_state_f64",
        1e-10,
        "Momentum and moments at their worst step. Measured 2.8e-15 over 1000 steps.",
    ),
    Tolerance(
        "trajectory_weight_f64",
        1e-10,
        "|weight| at its worst step. Measured 3.6e-14 over 1000 steps; one unit in the last "
        "place of the inputs moves them by 1.3e-14.",
    ),
    Tolerance(
        "trajectory_update_f32",
        3e-05,
        "Relative L2 of an update at its worst step. Measured 1.0e-5, at step 1 in AdamW, whose "
        "1 - b^t is rounded to float32.",
    ),
    Tolerance(
        "trajectory_state_f32",
        2e-05,
        "Relative L2 at its worst step. Measured 5.6e-6 over 1000 steps, in a second "
        "moment, and 6.3e-7 in a momentum, against Megatron-Core.",
    ),
    Tolerance(
        "trajectory_weight_f32",
        4e-05,
        "|weight|: weights grow to about 1 and are rounded at every step. Measured over "
        "1000 steps 1.3e-5 against Megatron-Core and 8.1e-6 against float64; one unit in "
        "the last place of the inputs moves them by 6.4e-6.",
    ),
    Tolerance(
        "trajectory_update_bf16",
        0.2,
        "Measured 2.8e-2 over 60 steps, Newton-Schulz in bfloat16 against float64.",
    ),
    Tolerance(
        "trajectory_state_bf16",
        2e-05,
        "Buffers are float32 then too. Measured 7.1e-7 over 60 steps.",
    ),
    Tolerance(
        "trajectory_weight_bf16",
        0.1,
        "Measured 3.7e-3 over 60 steps, at learning rates up to 0.02.",
    ),
    Tolerance(
        "fork_vs_megatron_fp32",
        5e-6,
        "Weights and buffers after 20 steps, 864 combinations. Measured 2.1e-6 (weights) and "
        "2.9e-6 (buffers, of size 40).",
    ),
    Tolerance(
        "megatron_fp32_vs_exact",
        5e-6,
        "Float32 rounding of Megatron's own Newton-Schulz over 20 steps, against float64, on every "
        "third combination. Measured 1.7e-6.",
    ),
    Tolerance(
        "bf16_over_noise",
        3.0,
        "Ratio, Newton-Schulz in bfloat16, 360 combinations: distance of the fork to Megatron over "
        "that of Megatron to itself with all inputs one unit in the last place up or down. "
        "Measured 1.7 (worst, 1.6e-3 over 9.5e-4) and 1.2 (mean).",
    ),
    Tolerance(
        "replay",
        1e-7,
        "One step between real checkpoints. Measured 5.9e-8 on dense, qk-norm and MoE samples, "
        "6.0e-8 on MLA, tensor and pipeline parallel 2, and Adam alone: norm scales near 1, whose "
        "float32 unit in the last place is 1.2e-7.",
    ),
    Tolerance(
        "replay_decayed_norms",
        2e-7,
        "One step between real checkpoints where norm scales decay: float32 rounds near 1 twice, "
        "after the decay and after the update. Measured 1.43e-7 on the reference of RFC-0023.",
    ),
    Tolerance(
        "replay_muon",
        2e-8,
        "Muon's matrices after one step between real checkpoints. Measured 7.1e-9, 7.3e-9 and "
        "9.4e-9: float32 values below 0.25, whose unit in the last place is 1.5e-8.",
    ),
    Tolerance(
        "replay_f64",
        2e-16,
        "One step between real checkpoints in float64. Measured 1.4e-17 (qwen3).",
    ),
    Tolerance(
        "float64",
        1e-12,
        "20 steps in float64, relative to the largest entry where that is above 1. Measured "
        "1.7e-13 with ten Newton-Schulz steps (DeepSeek-V4), 7e-16 with five.",
    ),
    Tolerance(
        "rfc_float64",
        1e-10,
        "20 steps of the reference trainer of RFC-0023 in float64 against float64 NumPy, weights "
        "and buffers. Measured 2.8e-16.",
    ),
    Tolerance(
        "layouts",
        0.0,
        "Weights, momentum and moments of one iteration, saved by real Megatron-Core with TP, PP "
        "and both, as torch_dist and torch: the same bits. Measured 0.",
    ),
    Tolerance(
        "layouts_trained",
        1e-5,
        "Loss of 40 steps with TP2 against TP1 from the same weights, float32. Measured 9.5e-7.",
    ),
    Tolerance(
        "torch_muon_over_noise",
        2.0,
        "Ratio, 20 steps of torch.optim.Muon, whose Newton-Schulz is always bfloat16: distance of "
        "the fork over that of torch to itself with all gradients one unit in the last place up or "
        "down. Measured 1.5 (3.9e-4 over 2.5e-4); rounding after every operation instead of once "
        "per addmm gives 7.2, casting after the norm 4.2.",
    ),
    Tolerance(
        "upstream",
        2e-6,
        "Updates of size 0.1 over 3 steps, 13 sets of arguments. Measured 0 (2.4e-7 with optimised "
        "code): Newton-Schulz runs over stacks here, over leaves in optax.",
    ),
    Tolerance(
        "training_dense",
        1e-5,
        "Loss of real MaxText 0.2.5 against real Megatron at each of 1300 steps, float32, dense. "
        "Measured 4.8e-6 (qwen3, trained with PP2, MLA), 4.3e-6 (tied), 6.2e-6 (GQA-8), 8.3e-6 "
        "(eight layers), 2.6e-6 (llama and mistral, folded query), 9.1e-6 (fused projection), "
        "8.6e-6 (polar express), 6.7e-6 (without Nesterov), 1.9e-6 (AdamW alone; RFC-0023); in "
        "float64 1.1e-14. The ten steps of DeepSeek-V4 are 5.3e-5 off, where Megatron's own noise "
        "floor is 2.9e-5.",
    ),
    Tolerance(
        "training_f64",
        3e-6,
        "Loss of real MaxText 0.2.5 against real Megatron at each of 1300 steps, both in float64, "
        "qwen3. Measured 1.1e-6 (mean 8.4e-8), 1.5e-8 in the first 40 steps: RMSNorm, which is "
        "float32 in MaxText's code whatever the dtype. With float64 there 4.1e-10 is left and does "
        "not grow: MaxText divides the loss by 1e-8 more than the 128 tokens.",
    ),
    Tolerance(
        "training_f64_exact",
        1e-12,
        "The same with float64 in RMSNorm and nothing added to the tokens. Measured over 1300 "
        "steps 1.1e-14 (qwen3, mean 1.8e-15), 6.7e-15 (llama, folded query), 1.1e-14 (MLA) and "
        "7.9e-14 (DeepSeek-V4's ten steps), "
        "1.8e-15 in the first 40 of qwen3, where one unit in the last place of a loss is 8.9e-16.",
    ),
    Tolerance(
        "training_window",
        1e-5,
        "Loss of real MaxText against real Megatron, float32 with experts, in windows of 100 "
        "steps that each start from a Megatron checkpoint. Measured 1.4e-6 in 13 windows "
        "(qwen3 with experts and mixtral), mean 3.0e-7.",
    ),
    Tolerance(
        "training_mla_window",
        2e-5,
        "Loss as of training_window, with latent attention and experts; yarn's softmax scale is "
        "computed in other steps on both sides. Measured 1.4e-6 without yarn and 7.9e-6 with, in "
        "13 windows, mean 3.0e-7 and 3.6e-7.",
    ),
    Tolerance(
        "training_over_floor",
        3.0,
        "Ratio to the noise floor, for runs that rounding alone drives apart: bfloat16, and "
        "experts without restarts. Measured 1.0 (qwen3 with experts, largest 2.4e-3), 1.1 "
        "(mixtral, 9.5e-6), 0.2 (deepseek), 1.4 (the mean of deepseek with yarn, 9.6e-4 over "
        "7.0e-4) and 1.0 (bfloat16, 9.5e-3), the floor being the further of two runs per step: in "
        "a single one no token need change its expert, and the ratio was 24.",
    ),
)


def limit(name: str) -> float:
    """The limit of that name.

    Raises:
      KeyError: there is no such row.
    """
    return {row.name: row.limit for row in TOLERANCES}[name]
