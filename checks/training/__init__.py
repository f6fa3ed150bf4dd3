"""The top rung: real MaxText continues a recorded Megatron run, step by step."""
