"""The sample creators' own steps, in the order in which the real command needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from devstack.errors import LocalStackError
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


FAILURES = [
    LocalStackError("`intarsia push …` took longer than 180 s."),
    httpx.ReadTimeout("timed out"),
    ValueError("no JSON"),
    KeyError("state"),
    FileNotFoundError("intarsia"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("act", ["is_published", "push", "was_measured", "measure"])
def test_a_sample_that_fails_is_told_and_the_others_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception, act: str
) -> None:
    done: list[tuple[str, str]] = []

    def acting(name: str, answer: Any) -> Any:
        def perform(self: SampleCreator, **_: Any) -> Any:
            if (self.task, name) == ("finance", act):
                raise failure
            done.append((self.task, name))
            return answer

        return perform

    for name, answer in (("is_published", False), ("push", {}), ("was_measured", False), ("measure", {})):
        monkeypatch.setattr(SampleCreator, name, acting(name, answer))
    checks: list[int] = []
    creators = SampleCreators(State.open(tmp_path), "http://127.0.0.1:1")
    (sentence,) = creators.publish(lambda: checks.append(1))
    name = creators.one("finance", "finance").model_name
    assert sentence.startswith(name) and name in capsys.readouterr().err
    for task in ("health", "telecom"):
        assert [(task, one) for one in ("is_published", "push", "was_measured", "measure")] == [
            one for one in done if one[0] == task
        ]
    assert ("guard", "push") in done and len(checks) == 4


def test_a_platform_that_fails_ends_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[str] = []
    monkeypatch.setattr(SampleCreator, "is_published", lambda self: False)
    monkeypatch.setattr(SampleCreator, "push", lambda self: pushed.append(self.task))
    monkeypatch.setattr(SampleCreator, "was_measured", lambda self: True)

    def broken() -> None:
        raise LocalStackError("web stopped")

    with pytest.raises(LocalStackError, match="web stopped"):
        SampleCreators(State.open(tmp_path), "http://127.0.0.1:1").publish(broken)
    assert pushed == ["finance"]
