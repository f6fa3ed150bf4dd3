"""Feed MaxText the very tokens that another trainer saw.

Used in MaxText's own Python, in place of ``input_pipeline_interface.SyntheticDataIterator`` with
``dataset_type=synthetic``.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def fixed_batches(tokens: np.ndarray) -> type:
    """An iterator class whose batch s is ``tokens[s]``, one unpacked segment per row.

    Args:
      tokens: integers [steps, batch, length + 1], also memory-mapped; row ``[:-1]`` is the input,
        row ``[1:]`` the target.
    """

    class FixedBatches:
        def __init__(self, config: Any, mesh: Any) -> None:
            expected = (config.global_batch_size_to_load, config.max_target_length + 1)
            if tokens.shape[1:] != expected:
                raise ValueError(f"tokens have shape {tokens.shape[1:]} per step, need {expected}")
            spec = jax.sharding.PartitionSpec(*map(_axes, config.data_sharding))  # type: ignore[no-untyped-call]
            self.sharding = jax.sharding.NamedSharding(mesh, spec)
            self.step = 0

        def __iter__(self) -> Any:
            return self

        def reset(self) -> None:
            self.step = 0

        def __next__(self) -> dict[str, Any]:
            # The trainer asks for one batch more than it uses.
            batch = np.asarray(tokens[min(self.step, len(tokens) - 1)], np.int32)
            self.step += 1
            place = np.arange(batch.shape[1], dtype=np.int32) + 0 * batch
            ones = np.ones_like(batch[:, 1:])
            fields = {"": batch, "_position": place}
            data = {f"inputs{name}": value[:, :-1] for name, value in fields.items()}
            data |= {f"targets{name}": value[:, 1:] for name, value in fields.items()}
            data |= {"inputs_segmentation": ones, "targets_segmentation": ones}
            return {name: jax.device_put(value, self.sharding) for name, value in data.items()}

    return FixedBatches


def _axes(entry: Any) -> Any:
    return tuple(entry) if isinstance(entry, (list, tuple)) else entry
