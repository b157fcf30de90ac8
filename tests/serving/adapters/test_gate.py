"""Loads and steps take turns: what a load asks between its pieces, and what the engine holds up."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
import torch

from lora_kernels import AdapterTensors
from serving.adapters import directory
from serving.adapters import gate as gates
from serving.adapters.directory import DirectoryAdapterSource
from serving.adapters.gate import Gate, Pause, go_on
from serving.adapters.workers import LoadWorkers
from serving.cores import available_cores
from serving.steps import PendingStep, StepPlan
from tests.sealed_weights.factories import BASE, adapter_tensors, write_adapter
from tests.serving.adapters.fakes import Running, Source, digest_of
from tests.serving.harness import running
from tests.serving.tiny import Tiny


class Pieces(Source):
    """A load of many pieces, of which it counts those that are done."""

    done = 0

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        for _ in range(10):
            pause()
            self.done += 1
        return super().load(digest, pause)


def test_a_pause_ends_when_the_gate_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LONGEST_SECONDS", 60.0)
    gate, passed = Gate(0.1), threading.Event()
    gate.pause()  # open: at once
    with gate.closed():
        thread = threading.Thread(target=lambda: (gate.pause(), passed.set()))
        thread.start()
        assert not passed.wait(0.1)
    assert passed.wait(10)
    thread.join()


def test_the_gate_opens_though_a_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LONGEST_SECONDS", 3_600.0)
    gate = Gate(0.1)
    with pytest.raises(ValueError, match="step"), gate.closed():
        raise ValueError("step")
    gate.pause()  # for an hour, were it closed


def test_no_piece_of_a_load_is_done_while_the_gate_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LONGEST_SECONDS", 60.0)
    source = Pieces()
    run = Running(source)
    run.manager.gate.load_pause = 0.1
    with run.manager.gate.closed():
        run.manager.want([digest_of(1)])
        time.sleep(0.1)
        run.turn()
        assert run.manager.loading
        assert (source.done, source.loaded, run.weights_left()) == (0, [], 0)
    run.load(digest_of(1))
    assert source.done == 10 and run.weights_left() and not run.manager.loading
    run.close()


def test_a_copy_stops_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LONGEST_SECONDS", 60.0)
    run = Running()
    run.manager.gate.load_pause = 0.1
    closed = run.manager.gate.closed()
    # The source is asked with the gate open; when it answers, the gate is closed.
    run.source.on_load = lambda digest: closed.__enter__()
    run.manager.want([digest_of(1)])
    run.until(lambda: run.source.loaded == [digest_of(1)])
    time.sleep(0.1)
    run.turn()
    assert run.manager.loading and run.weights_left() == 0
    closed.__exit__(None, None, None)
    run.load(digest_of(1))
    assert run.weights_left()
    run.close()


def test_folders_are_read_in_pieces(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", adapter_tensors(rank=16), r=16)
    source = DirectoryAdapterSource(tmp_path, BASE)
    digest = source.resolve("a")
    assert digest is not None
    pauses: list[None] = []
    paused = source.load(digest, lambda: pauses.append(None))
    size = (tmp_path / "a" / "adapter_model.safetensors").stat().st_size
    assert len(pauses) >= size / directory._PIECE + 2
    for target, pair in source.load(digest).items():
        assert torch.equal(pair.a, paused[target].a) and torch.equal(pair.b, paused[target].b)


def test_beside_a_step_without_end_a_load_goes_on_slowly() -> None:
    source = Pieces()
    run = Running(source)
    run.manager.gate.load_pause = 0.1
    with run.manager.gate.closed():
        began = time.monotonic()
        run.load(digest_of(1))
        assert time.monotonic() - began > 10 * gates.LONGEST_SECONDS
    run.close()


@pytest.mark.parametrize("spare", [0, 1])
async def test_the_engine_closes_it_where_its_threads_have_every_core(
    tiny: Tiny, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = max(1, available_cores() - spare)
    taken = threads == available_cores()
    async with running(tiny, threads=threads) as run:
        assert await asyncio.to_thread(run.engine.ready.wait, 60)  # warming up needs no turns
        gate, seen = run.engine.adapters.gate, []
        launch = run.engine.runner.launch

        def watched(plan: StepPlan) -> PendingStep:
            seen.append(gate._open.is_set())
            return launch(plan)

        monkeypatch.setattr(run.engine.runner, "launch", watched)
        prompt = list(range(10, 40))
        assert await run.tokens(prompt, "r4") == tiny.reference("r4", prompt, 12)
        closes = taken and run.engine.runner.paces_loads
        assert len(seen) >= 12 and set(seen) == {not closes}
        await run.settled()
        assert gate._open.is_set()


def test_workers_compute_with_half_of_the_cores_and_leave_others_their_threads() -> None:
    before, seen, done = torch.get_num_threads(), [], threading.Event()
    workers = LoadWorkers(2)
    workers.submit(lambda: seen.append(torch.get_num_threads()), lambda future: done.set())
    assert done.wait(10)
    workers.close()
    assert (seen, torch.get_num_threads()) == ([max(1, available_cores() // 4)], before)
