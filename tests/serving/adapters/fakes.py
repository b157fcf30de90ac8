"""A real pool of a tiny model, and a source whose memory a test can look into."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from lora_kernels import AdapterPool, AdapterTensors, LoraPair, PoolSpec, SiteSpec
from serving.adapter_stats import LevelSeconds
from serving.adapters.gate import Pause, go_on
from serving.adapters.manager import AdapterManager
from serving.errors import AdapterUnavailable, EngineError

SPEC = PoolSpec((SiteSpec("qkv", 32, (32, 16, 16)), SiteSpec("o", 32, (32,))), num_layers=2, max_rank=64)


def digest_of(number: int) -> str:
    return f"{number:064x}"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Adapter n has rank `ranks.get(n, 16)` and only values above 0. `gates`: events that loads of a digest wait for.

    memory: what was handed out and not wiped since; `wiped`: views of all that was, to see that it reads zeros.
    """

    leased = True

    def __init__(self, ranks: dict[str, int] | None = None) -> None:
        self.seconds, self.ranks = LevelSeconds(), ranks or {}
        self.gates: dict[str, threading.Event] = {}
        self.problems: dict[str, Exception] = {}
        self.memory: dict[str, torch.Tensor] = {}
        self.wiped: list[torch.Tensor] = []
        self.loaded: list[str] = []
        self.released: list[str] = []
        self.on_load: Callable[[str], None] = lambda digest: None

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        self.loaded.append(digest)
        self.on_load(digest)
        if digest in self.gates:
            assert self.gates[digest].wait(10)
        if digest in self.problems:
            raise self.problems[digest]
        rank = self.ranks.get(digest, 16)
        targets = [
            (layer, site.name, index, site.in_features, width)
            for layer in range(SPEC.num_layers)
            for site in SPEC.sites
            for index, width in enumerate(site.slices)
        ]
        generator = torch.Generator().manual_seed(int(digest, 16) % 2**31)
        memory = torch.rand(sum(rank * (k + n) for *_, k, n in targets), generator=generator) + 0.5
        parts = iter(memory.split([size for *_, k, n in targets for size in (rank * k, rank * n)]))
        tensors = {
            (layer, site, index): LoraPair(next(parts).view(rank, k), next(parts).view(n, rank), 2.0)
            for layer, site, index, k, n in targets
        }
        self.memory[digest] = memory
        return tensors

    def copied(self, digest: str) -> None:
        memory = self.memory.pop(digest, None)
        if memory is not None:
            memory.zero_()
            self.wiped.append(memory)

    def release(self, digest: str) -> None:
        assert digest not in self.memory, "released with plaintext left"
        self.released.append(digest)

    def locked_bytes(self) -> int:
        return 0


class Running:
    """A manager over a pool of `pages`, turned by hand."""

    def __init__(
        self,
        source: Source | None = None,
        *,
        pages: int = 4,
        slots: int = 4,
        workers: int = 2,
        host_bytes: int = 0,
        idle: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        backend: str | None = None,
    ) -> None:
        self.source = source or Source()
        self.pool = AdapterPool(SPEC, pages, slots, torch.float32, backend=backend)
        self.manager = AdapterManager(
            self.pool, self.source, workers=workers, host_bytes=host_bytes, idle_seconds=idle, clock=clock
        )
        self.arrived = threading.Event()
        self.manager.on_arrival = self.arrived.set
        self.failed: list[tuple[str, EngineError]] = []

    def turn(self) -> None:
        self.arrived.clear()
        self.failed += self.manager.poll()
        self.manager.check_integrity()

    def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        limit = time.monotonic() + seconds
        self.turn()
        while not holds():
            assert time.monotonic() < limit, f"{self.manager.states()} {self.failed}"
            self.arrived.wait(0.002)
            self.turn()

    def load(self, *digests: str) -> None:
        """Wants them until all are ready."""
        self.manager.want(digests)
        self.until(lambda: self.ready(*digests))

    def ready(self, *digests: str) -> bool:
        missing = [d for d in digests if not self.manager.is_ready(d)]
        self.manager.want(missing)
        return not missing

    def state(self, digest: str) -> str:
        return self.manager.states().get(digest, "cold")

    def at(self, digest: str, state: str) -> None:
        self.until(lambda: self.state(digest) == state)

    def weights_left(self) -> int:
        """Numbers that are not zero, anywhere in the pool."""
        return sum(
            int(self.pool.site(site.name).a.count_nonzero() + self.pool.site(site.name).b.count_nonzero())
            for site in SPEC.sites
        )

    def plaintext_left(self) -> int:
        return sum(int(m.count_nonzero()) for m in [*self.source.memory.values(), *self.source.wiped])

    def close(self) -> None:
        for gate in self.source.gates.values():
            gate.set()
        self.manager.close()


def refused(what: str = "no") -> AdapterUnavailable:
    return AdapterUnavailable(what)
