"""Replay the step between two consecutive Megatron checkpoints with the fork.

Two checkpoints one step apart hold the gradient of that step, already clipped: the momentum buffer
is linear in it. What the optimizer makes of it can then be compared with what Megatron made.
"""
