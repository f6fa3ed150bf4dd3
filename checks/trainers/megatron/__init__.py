"""Train a real Megatron-Core GPT on a CPU and leave what such a run leaves: checkpoints and losses.

``models`` and ``optimizers`` say what is trained, ``launch.record`` trains it in processes of its
own and writes the folder that ``checks.training`` reads. Only the processes import Megatron.
"""
