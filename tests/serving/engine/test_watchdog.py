"""A process whose engine hangs ends itself: tried with steps that really never return."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from devstack.state import REPOSITORY
from serving.steps import PendingStep, StepPlan
from tests.serving.harness import running
from tests.serving.tiny import Tiny

# An engine of which only `turn` is looked at; `hang` is what its turn does.
_PROGRAM = """
import ctypes, itertools, sys, threading, time
from types import SimpleNamespace
from serving.engine.watchdog import Watchdog
engine = SimpleNamespace(turn=0)
Watchdog(engine, float(sys.argv[1])).start()
def last(turns):  # longer than the time that one turn may take
    until = time.monotonic() + 1.4 * float(sys.argv[1])
    while time.monotonic() < until: engine.turn = next(turns); time.sleep(0.01)
def idle(): last(itertools.repeat(0))
def work(): last(itertools.count(1))
def waiting_hang(): engine.turn = 7; threading.Event().wait()
def holding_the_interpreter():
    engine.turn = 7
    ctypes.PyDLL(None).sleep(60)  # a call of C that keeps the lock
for name in sys.argv[2:]: globals()[name]()
"""


def run(seconds: float, *acts: str) -> tuple[int, str]:
    command = [sys.executable, "-c", _PROGRAM, str(seconds), *acts]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=50)
    return done.returncode, done.stderr


@pytest.mark.parametrize("hang", ["waiting_hang", "holding_the_interpreter"])
def test_a_turn_that_never_ends_ends_the_process_and_shows_where_it_hung(hang: str) -> None:
    status, shown = run(0.4, hang)
    assert status == 1
    assert "Timeout" in shown and hang in shown


@pytest.mark.deep  # it waits: the limit of a turn has to be longer than a busy machine lets a process wait
@pytest.mark.parametrize("act", ["work", "idle"])
def test_an_idle_engine_and_one_that_makes_progress_are_left_alone(act: str) -> None:
    status, shown = run(10, act)
    assert (status, shown) == (0, "")


async def test_an_engine_is_in_one_turn_while_a_step_blocks_and_in_none_while_it_waits(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    async with running(tiny) as run:
        await asyncio.to_thread(run.engine.ready.wait)
        launch = run.engine.runner.launch

        def blocked(plan: StepPlan) -> PendingStep:
            entered.set()
            leave.wait(30)
            return launch(plan)

        monkeypatch.setattr(run.engine.runner, "launch", blocked)
        answer = asyncio.create_task(run.tokens([1, 2, 3], tokens=2))
        assert await asyncio.to_thread(entered.wait, 10)
        turn = run.engine.turn
        await asyncio.sleep(0.05)
        assert turn and run.engine.turn == turn
        leave.set()
        assert len(await answer) == 2
        await run.settled()
        while run.engine.turn:
            await asyncio.sleep(0.01)
