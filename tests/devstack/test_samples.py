"""The sample creators' own steps, in the order in which the real command needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devstack.samples import SampleCreator, SampleCreators
from devstack.state import State


def test_a_creator_logs_in_before_it_asks_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make run` after `make demo`: the model is for sale already, and the address is another one."""
    calls: list[str] = []

    def cli(self: SampleCreator, *arguments: str, **_: Any) -> str:
        calls.append(arguments[0])
        return "[]"

    monkeypatch.setattr(SampleCreator, "cli", cli)
    monkeypatch.setattr(SampleCreator, "log_in", lambda self: calls.append("login"))
    creator = SampleCreators(State.open(tmp_path), "http://127.0.0.1:1").one("finance", "finance")
    assert creator.was_measured() is False
    assert calls == ["login", "eval"]
