"""The one collective of a replica of several ranks: the sum of each layer's partial outputs, over gloo or NCCL."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lora_kernels import BatchMetadata
from serving.models.llama import Llama
from serving.models.loader import Linear


class Collectives:
    """Sums over the ranks of one replica. Every rank calls `sum` as often, with the same shapes.

    meeting: a file, not there yet, by which the ranks find one another; it may go when all are connected
    seconds: how long a rank waits for the others; on a GPU, NCCL's watchdog then ends the process

    Raises RuntimeError when a rank is gone or late. gloo's connections stay on 127.0.0.1.
    """

    def __init__(self, meeting: Path, rank: int, ranks: int, device: torch.device, seconds: float) -> None:
        store, limit = distributed.FileStore(str(meeting), ranks), timedelta(seconds=seconds)
        options: Any
        if device.type == "cuda":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._group: Any = distributed.ProcessGroupNCCL(store, rank, ranks, options)
        else:
            gloo: Any = distributed.ProcessGroupGloo
            options = gloo._Options()
            options._devices, options._timeout = [gloo.create_device(hostname="127.0.0.1")], limit
            self._group = gloo(store, rank, ranks, options)

    def sum(self, partial: torch.Tensor) -> None:
        """Replace `partial` by its sum over all ranks. On a GPU the stream waits and the host goes on."""
        self._group.allreduce([partial]).wait()


class Summed:
    """The mark of a model that is one rank's: a layer's part of the residual, its adapters' included, is summed."""

    collectives: Collectives

    def _output_linear(
        self, x: torch.Tensor, weight: Linear, site: str, layer: int, adapters: BatchMetadata | None
    ) -> torch.Tensor:
        linear: Any = super()
        partial: torch.Tensor = linear._output_linear(x, weight, site, layer, adapters)
        self.collectives.sum(partial)
        return partial


class ShardedLlama(Summed, Llama):  # type: ignore[misc]  # a static method becomes one of the instance
    """The plain model of one rank. Set `collectives` before the first step."""
