"""What the clock sees on a GPU: the replay of a captured graph alone, after a flush that only reads."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from benchmarks.gpu import timing


def test_a_call_is_captured_once_and_the_cache_is_flushed_by_reading_before_each_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[object] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            seen.append("event")

        def elapsed_time(self, other: object) -> float:
            return 6.0  # milliseconds

    class Graph:
        def replay(self) -> None:
            seen.append("replay")

    class Stream:
        def synchronize(self) -> None:
            seen.append("wait")

    @contextmanager
    def within(*_: Any, **__: Any) -> Any:
        yield

    read = torch.sum

    def flush(data: torch.Tensor, *arguments: Any, out: torch.Tensor) -> torch.Tensor:
        seen.append("flush")
        return read(data, *arguments, out=out)

    zeros, empty = torch.zeros, torch.empty
    monkeypatch.setattr(timing, "FLUSH_BYTES", 64)
    monkeypatch.setattr(torch, "zeros", lambda size, **more: zeros(size, **{**more, "device": "cpu"}))
    monkeypatch.setattr(torch, "empty", lambda size, **more: empty(size, **{**more, "device": "cpu"}))
    monkeypatch.setattr(torch, "sum", flush)
    for name, fake in (
        ("Event", Event),
        ("CUDAGraph", Graph),
        ("Stream", Stream),
        ("stream", within),
        ("graph", within),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)
    assert timing.graph_seconds(seen.append, 3) == pytest.approx(0.002)
    warm_up, rest = seen[:10], seen[10:]
    assert warm_up == [0, 1, 2, 0, 1, 2, "wait", 0, 1, 2]
    assert rest == ["flush", "event", "replay", "event", "wait"] * timing.REPLAYS


def test_layers_are_cold_on_a_gpu_and_few_elsewhere() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert timing.cold_layers(cuda, 240e6) == 3 and timing.cold_layers(cuda, 2e9) == 2
    assert timing.cold_layers(cuda, 1) == timing.MOST_LAYERS and timing.cold_layers(cpu, 1) == 2
