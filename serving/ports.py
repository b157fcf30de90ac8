"""The engine's needs of its runner and of adapter memory. Implementations are in `serving.runner`,
`serving.adapters` and the tests; they do not inherit from these protocols."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from lora_kernels import AdapterPool
from serving.adapter_stats import AdapterCounters, AdapterGauges, LevelSeconds
from serving.block_copies import BlockCopies
from serving.core import AdapterRef
from serving.errors import EngineError
from serving.steps import Residency, StepRunner
from serving.trace import Tracer


class BaseLinears(Protocol):
    """The linears of a base, by layer and adapter site; the output head's site is "head" of layer 0.

    For loads of adapters. Safe to call from worker threads while steps run.
    """

    def products(self, layer: int, site: str, x: torch.Tensor) -> torch.Tensor:
        """Return x Wᵀ, float32 [r, N], of x float32 [r, K], of the weights that are served."""
        ...

    def squares(self, layer: int, site: str) -> torch.Tensor:
        """Return the sum of squares of each row of W, float32 [N]; computed once."""
        ...

    def bias(self, layer: int, site: str) -> torch.Tensor | None:
        """Return the base's own bias of a site, float32 [N]."""
        ...


class Runner(StepRunner, Protocol):
    """A `StepRunner` over one base model. Belongs to the engine thread.

    trace: receives the times of a step's parts
    kv: the memory of KV blocks, one block at a time
    """

    trace: Tracer

    @property
    def kv(self) -> BlockCopies: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        ...

    @property
    def linears(self) -> BaseLinears:
        """The base's weights, for adapters whose extras depend on them."""
        ...

    @property
    def paces_loads(self) -> bool:
        """Whether adapter loads wait while a step computes, because its threads need every core."""
        ...

    @property
    def elastic_memory(self) -> bool:
        """Whether `give_back` returns memory, so that adapters and KV cache may share one budget."""
        ...

    def zero(self, blocks: Iterable[int]) -> None:
        """Erase KV blocks now: what a revoked adapter wrote must not outlive it."""
        ...

    def give_back(self, blocks: Iterable[int]) -> None:
        """Return the memory of free KV blocks to the system, where `elastic_memory` holds."""
        ...


class ResidentAdapters(Protocol):
    """Adapters in a kernel pool, as a runner sees them; slot -1 is the base model."""

    @property
    def pool(self) -> AdapterPool: ...

    def slot(self, digest: str | None) -> int: ...


class LoadGate(Protocol):
    """Keeps loads from computing while a step does.

    load_pause: share of a step's time that loads get to themselves after it; 0: loads are not paced
    """

    load_pause: float

    def closed(self) -> AbstractContextManager[None]:
        """Hold loads between two pieces of their work while the block runs."""
        ...

    def let_loads_run(self, step_seconds: float) -> None:
        """Leave the cores to loads for a moment after a step of `step_seconds`."""
        ...


class Adapters(Residency, ResidentAdapters, Protocol):
    """Adapter memory as the engine sees it. Methods belong to the engine thread, unless they say otherwise.

    on_arrival: called from worker threads when a load has ended
    counters, seconds: since start; safe to read from any thread
    """

    on_arrival: Callable[[], None]
    counters: AdapterCounters
    seconds: LevelSeconds

    @property
    def loading(self) -> bool:
        """Whether any worker is busy."""
        ...

    @property
    def gate(self) -> LoadGate: ...

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of the pool, over all layers."""
        ...

    def set_page_limit(self, pages: int) -> None:
        """Set how many pages of the pool may be in use; adapters in use stay until they are idle."""
        ...

    def loaded(self, digest: str) -> tuple[float, float] | None:
        """Return begin and end of the load of a ready adapter (`time.monotonic`). Safe from any thread."""
        ...

    def hint(self, digests: Iterable[str]) -> None:
        """Name adapters that may be asked for soon. Safe from any thread."""
        ...

    def states(self) -> dict[str, str]:
        """Return digest → state of every adapter that is not cold. Safe to ask from any thread."""
        ...

    def near(self) -> list[str]:
        """Return the adapters with a copy in the host's memory. Safe to ask from any thread."""
        ...

    def gauges(self) -> AdapterGauges:
        """Return the use of adapter memory now. Safe to ask from any thread."""
        ...

    def expect(self, ref: AdapterRef) -> None:
        """Keep what a request needs, once it is there, until `forget`."""
        ...

    def forget(self, ref: AdapterRef) -> None:
        """Undo `expect`: the request has ended."""
        ...

    def want(self, digests: Iterable[str]) -> None:
        """Replace the list of adapters to load, most urgent first."""
        ...

    def poll(self) -> Iterable[tuple[str, EngineError]]:
        """Take over finished loads. Returns the adapters that failed, with the reason."""
        ...

    def is_revoked(self, digest: str | None) -> bool:
        """Whether the adapter, or any part of a blend, is revoked. Safe to ask from any thread."""
        ...

    def revoke(self, digest: str) -> Collection[str]:
        """Refuse and zero the adapter. Returns the digests of everything that can no longer run."""
        ...

    def readmit(self, digest: str) -> None:
        """Lift a revocation."""
        ...

    def close(self) -> None:
        """Wait for running loads; zero and release everything."""
        ...
