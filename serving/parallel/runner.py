"""Rank 0's runner on a CPU, and rank 0's adapter pool: each tells the other ranks what it does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from lora_kernels import AdapterPool, AdapterTensors, BackendError, BatchMetadata, Reservation
from serving.adapters.gate import go_on
from serving.kv.paged import PagedKV
from serving.models.llama import Llama
from serving.parallel import memory, wire
from serving.parallel.cargo import read_cargo
from serving.parallel.ranks import Ranks, RanksLost
from serving.ports import ResidentAdapters
from serving.runner.torch_runner import TorchRunner
from serving.runner.work import StepWork

# As of `Reservation.write`: one adapter, or the weighted parts of a blend.
Loadable = AdapterTensors | Sequence[tuple[AdapterTensors, float]]


class LeadingRunner(TorchRunner):
    """`serving.ports.Runner` of rank 0 in plain torch."""

    def __init__(self, model: Llama, kv: PagedKV, adapters: ResidentAdapters, ranks: Ranks) -> None:
        super().__init__(model, kv, adapters)
        self.ranks = ranks

    def compute(self, work: StepWork) -> tuple[torch.Tensor, BatchMetadata | None]:
        """Have every rank compute its part of a step."""
        self.ranks.tell(wire.Step.of(work))
        try:
            return super().compute(work)
        except BaseException as error:
            self.ranks.abandon(error)
            raise

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero KV blocks on every rank before this returns."""
        gone = list(blocks)
        super().zero(gone)
        self.ranks.zero(gone)


class ShardedReservation(Reservation):
    """Pages of every rank for one adapter: `write` gives each its part. Made by `ShardedPool.reserve`."""

    ranks: Ranks
    number: int

    def write(self, what: Loadable, *, stream: Any = None, pause: Callable[[], None] = go_on) -> None:
        """Write as `Reservation.write`, on every rank before this returns. Raises RanksLost too."""
        if not isinstance(what, Mapping):
            raise BackendError("ranks make blends of slots, not of tensors")

        def write_own(part: memory.Shared) -> None:
            super(ShardedReservation, self).write(read_cargo(part.bytes), stream=stream, pause=pause)

        self.ranks.load(self.number, what, write_own)


class ShardedPool(AdapterPool):
    """Rank 0's part of the adapters' pages; every other rank's pool goes through the same states, command by command.

    Slots are the same on every rank. An adapter with extras (DoRA, biases, trained tokens, an adapted embedding or
    head) has no memory here.
    """

    RESERVATION = ShardedReservation

    def __init__(self, ranks: Ranks, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings | {"extra_bytes": 0})
        self._ranks = ranks

    def reserve(self, pages: int, extra_bytes: int = 0) -> Reservation:
        """Reserve as `AdapterPool.reserve`, on every rank. Raises RanksLost too."""
        reservation = super().reserve(pages, extra_bytes)
        assert isinstance(reservation, ShardedReservation)
        reservation.ranks, reservation.number = self._ranks, self._ranks.take_number()
        self._ranks.tell(wire.Reserve(reservation.number, pages))
        return reservation

    def publish(self, slot: int, reservation: Reservation) -> None:
        """Publish as `AdapterPool.publish`, on every rank. Raises RanksLost too."""
        assert isinstance(reservation, ShardedReservation)
        super().publish(slot, reservation)
        self._ranks.tell(wire.Publish(slot, reservation.number))

    def cancel(self, reservation: Reservation) -> None:
        """Cancel as `AdapterPool.cancel`, on every rank before this returns."""
        assert isinstance(reservation, ShardedReservation)
        super().cancel(reservation)
        self._forget(wire.Cancel(reservation.number))

    def blend(self, slot: int, parts: Sequence[tuple[int, float]]) -> None:
        """Blend as `AdapterPool.blend`, on every rank. Raises RanksLost too."""
        super().blend(slot, parts)
        self._ranks.tell(wire.Blend(slot, list(parts)))

    def evict(self, slot: int) -> None:
        """Zero and free the pages of a slot on every rank before this returns."""
        super().evict(slot)
        self._forget(wire.Evict(slot))

    def _load(self, slot: int, what: Loadable) -> None:
        raise BackendError("an adapter of several ranks is reserved, written and published")

    def _forget(self, command: wire.Command) -> None:
        """Have the ranks zero something; a rank that is gone has no memory left."""
        with contextlib.suppress(RanksLost):
            self._ranks.tell(command)
            self._ranks.settle()
