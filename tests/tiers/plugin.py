"""Pytest plugin (`-p tests.tiers.plugin`): measures items in processor time, orders them, and cuts them into shards.

    --costs FILE      write what each item took: processor seconds of its worker and of all processes below that
    --shard K/N       run the Kth of N parts of what was selected
    --without MODULE  fail every import of this module in the tests' own processes

Items are handed to workers by file, longest file first, by the times in tests/tiers/durations.json. A dear item whose
file has no fixture of its own that costs anything is handed out by itself.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.tiers.costs import Run
from tests.tiers.durations import Durations, parts
from tests.tiers.processes import descendants_seconds

_SHARED_SCOPES = ("class", "module", "package", "session")
_PROBE_EVERY = 2.0  # seconds
_PROBE_TURNS = 20_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--costs", metavar="FILE", help="write the processor seconds of each item to FILE")
    group.addoption("--shard", metavar="K/N", help="run the Kth of N parts of the selected items")
    group.addoption("--without", metavar="MODULE", help="fail every import of MODULE in the tests' own processes")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Order(config), "intarsia-order")
    if forbidden := config.getoption("without"):
        sys.meta_path.insert(0, _Forbidden(forbidden))
    if config.getoption("costs"):
        if hasattr(config, "workerinput"):
            config.pluginmanager.register(_Meter(config), "intarsia-meter")
        else:
            meter = None if config.getoption("dist", "no") != "no" else _Meter(config)
            if meter:
                config.pluginmanager.register(meter, "intarsia-meter")
            config.pluginmanager.register(_Ledger(config, meter), "intarsia-costs")


class _Forbidden:
    """Refuses one module, so that a worker of one half never pays for the libraries of the other."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] == self._name:
            test = os.environ.get("PYTEST_CURRENT_TEST", "a file's import")
            raise ImportError(f"{name} is imported in a half of the suite that is without it (by {test})")
        return None


class _Order:
    """Puts long files first and keeps one shard."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._durations = Durations.read()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        units: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            units[self._durations.unit(item.nodeid)].append(item)
        weights = {unit: sum(self._durations.of(item.nodeid) for item in members) for unit, members in units.items()}
        kept = sorted(units, key=lambda unit: -weights[unit])
        if shard := self._config.getoption("shard"):
            number, _, count = shard.partition("/")
            kept = parts(weights, int(count))[int(number) - 1]
            left_out = [item for unit in units.keys() - set(kept) for item in units[unit]]
            self._config.hook.pytest_deselected(items=left_out)
        items[:] = [item for unit in kept for item in units[unit]]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler.loadscope import LoadScopeScheduling

        durations = self._durations

        class Units(LoadScopeScheduling):
            """Hands out whole units in the order of the collection, longest first."""

            def _split_scope(self, nodeid: str) -> str:
                return durations.unit(nodeid)

        return Units(config, log) if config.getoption("dist") == "loadscope" else None


class _Meter:
    """Measures in the process that runs the items."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.costs: dict[str, tuple[float, float]] = {}
        self.sharing: set[str] = set()
        self._probes: list[float] = []
        self._next_probe = 0.0

    def _used(self) -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime + descendants_seconds(os.getpid())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if time.monotonic() >= self._next_probe:
            self._probes.append(_probe())
            self._next_probe = time.monotonic() + _PROBE_EVERY
        before, started = self._used(), time.monotonic()
        result = yield
        # Less than nothing: a process was killed, and its parent never asked how it ended.
        self.costs[item.nodeid] = (max(0.0, self._used() - before), time.monotonic() - started)
        if _shares(item):
            self.sharing.add(item.nodeid.partition("::")[0])
        return result

    def state(self) -> dict[str, Any]:
        return {"costs": self.costs, "sharing": sorted(self.sharing), "probes": self._probes}

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["intarsia-costs"] = self.state()


class _Ledger:
    """Collects what the workers measured, and writes it when the session ends."""

    def __init__(self, config: pytest.Config, meter: _Meter | None) -> None:
        self._config = config
        self._meter = meter
        self._states: list[dict[str, Any]] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if state := getattr(node, "workeroutput", {}).get("intarsia-costs"):
            self._states.append(state)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if self._meter:
            self._states.append(self._meter.state())
        if not self._states:
            return
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole = time.process_time() + children.ru_utime + children.ru_stime + descendants_seconds(os.getpid())
        run = Run.of(self._states, whole=whole)
        Path(self._config.getoption("costs")).write_text(json.dumps(run.as_json()))


def _shares(item: pytest.Item) -> bool:
    """Return whether the item has a fixture that its own file or folder keeps for several items."""
    info = getattr(item, "_fixtureinfo", None)
    definitions: dict[str, Sequence[Any]] = getattr(info, "name2fixturedefs", {})
    return any(
        last.scope in _SHARED_SCOPES and last.baseid not in ("", "tests")
        for found in definitions.values()
        if (last := found[-1])
    )


def _probe() -> float:
    """Return the seconds of a fixed piece of work: the machine's speed at this moment, beside its neighbours."""
    started = time.process_time()
    total = 0
    for number in range(_PROBE_TURNS):
        total += number & 7
    return time.process_time() - started
