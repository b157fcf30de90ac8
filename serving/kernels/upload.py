"""The upload of a step's integers: one pinned buffer, one copy, fixed places on the device for captured graphs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Int32s = npt.NDArray[np.int32]
_DTYPES = {np.int32: torch.int32, np.int64: torch.int64, np.float32: torch.float32}
HOST_SIDES = 2  # while the device copies one side, the host writes the other


class StepBuffer:
    """Named int32 arrays in one buffer on the device and two on the host. The last array may be used in part."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        # Whole cache lines, so that 16-byte loads are aligned.
        sizes = [-(-math.prod(shape) // 32) * 32 for shape in shapes.values()]
        places = [
            (name, shape, begin)
            for (name, shape), begin in zip(shapes.items(), itertools.accumulate(sizes, initial=0), strict=False)
        ]
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned) for _ in range(HOST_SIDES)]
        self._device = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._arrays: list[dict[str, Int32s]] = [
            {name: host[begin : begin + math.prod(shape)].numpy().reshape(shape) for name, shape, begin in places}
            for host in self._hosts
        ]
        self.tensors = {
            name: self._device[begin : begin + math.prod(shape)].view(shape) for name, shape, begin in places
        }
        _, shape, self._last = places[-1]
        self._width = math.prod(shape[1:])
        self._side = 0

    def begin(self) -> dict[str, Int32s]:
        """Return the host arrays for the next step: those of the step before the last, which has been read."""
        self._side = (self._side + 1) % HOST_SIDES
        return self._arrays[self._side]

    def used(self, of_last: int) -> Int32s:
        """Return what `upload` copies from the host side that `begin` returned last, flat."""
        whole: Int32s = self._hosts[self._side].numpy()
        return whole[: self._last + of_last * self._width]

    def upload(self, of_last: int | None = None) -> None:
        """Start the copy to `tensors`: of the last array the first `of_last` rows (None: all), of the others all."""
        used = len(self._device) if of_last is None else self._last + of_last * self._width
        self._device[:used].copy_(self._hosts[self._side][:used], non_blocking=True)


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Start the copy of an array that is made for one step. torch keeps the pinned memory until the copy is done."""
    dtype = _DTYPES[array.dtype.type]
    host = torch.empty(array.shape, dtype=dtype, pin_memory=device.type == "cuda")
    host.numpy()[...] = array
    return host.to(device, non_blocking=True)
