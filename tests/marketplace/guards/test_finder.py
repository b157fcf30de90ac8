"""The process that finds personal data: what it finds, and that it can be killed, busy or missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from marketplace.guards import finder as finder_module
from marketplace.guards.finder import (
    MAX_CHARACTERS,
    SEARCHES,
    Finder,
    FinderBusy,
    FinderFailed,
    FinderMissing,
)
from marketplace.guards.policies import KINDS

pytestmark = pytest.mark.asyncio


@pytest.fixture
def finder(warm_finder: Finder) -> Finder:
    return warm_finder


@pytest.fixture
def mortal() -> Iterator[Finder]:
    """A process for one test, which ends it."""
    one = Finder()
    yield one
    one.close()


async def found(finder: Finder, text: str, kinds: tuple[str, ...] = tuple(KINDS)) -> list[tuple[str, str]]:
    (spans,) = await finder.find(kinds, [text], asker="a")
    return [(kind, text[start:end]) for start, end, kind in spans]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("card", "4111 1111 1111 1111"),
        ("card", "378282246310005"),
        ("iban", "GB82 WEST 1234 5698 7654 32"),
        ("wallet", "1BoatSLRHtKNngkdXEeobR76b53LETtpyT"),
        ("email", "bob.smith+tag@example.co.uk"),
        ("ip", "10.0.0.7"),
        ("ip", "2001:db8::1"),
        ("id", "78051401071"),
        ("phone", "+44 20 7946 0958"),
        ("phone", "(415) 555-2671"),
    ],
)
async def test_each_kind_is_found_in_the_middle_of_a_text(finder: Finder, kind: str, value: str) -> None:
    assert await found(finder, f"Please note {value}, and answer.") == [(kind, value)]


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # the checksum is wrong
        "GB82 WEST 1234 5698 7654 33",
        "version 1.2.3 of 2026-11-26 costs $1,234.56",
        "see bob@localhost, or @channel",
        "999.1.1.1 and :: and a::b::c",
    ],
)
async def test_what_only_looks_like_it_is_left_alone(finder: Finder, text: str) -> None:
    assert await found(finder, text) == []


async def test_kinds_that_nobody_asked_for_are_not_found(finder: Finder) -> None:
    assert await found(finder, "bob@example.com 10.0.0.7", ("ip",)) == [("ip", "10.0.0.7")]


async def test_findings_that_share_characters_are_one_of_the_first_kind(finder: Finder) -> None:
    assert [kind for kind, _ in await found(finder, "card 4111-1111-1111-1111 here")] == ["card"]


async def test_texts_are_searched_apart(finder: Finder) -> None:
    assert await finder.find(["email"], ["bob@", "example.com"], asker="a") == [[], []]


@pytest.mark.deep
async def test_the_longest_text_of_digits_is_searched_in_time(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder_module, "SEARCH_SECONDS", 300)  # the machine may be busy: processor time decides
    numbers = ("020 7946 0958, " * MAX_CHARACTERS)[:MAX_CHARACTERS]
    (spans,) = await finder.find(list(KINDS), [numbers], asker="a")
    assert len(spans) > MAX_CHARACTERS // 20


@pytest.mark.parametrize("limit", ["SEARCH_SECONDS", pytest.param("CPU_SECONDS", marks=pytest.mark.deep)])
async def test_a_search_that_takes_too_long_ends_its_process_and_the_next_one_works(
    mortal: Finder, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    assert await found(mortal, "bob@example.com", ("email",))
    process = mortal._process
    assert process is not None
    monkeypatch.setattr(finder_module, limit, 0.01)
    with pytest.raises(FinderFailed):
        await mortal.find(list(KINDS), ["020 7946 0958, " * 2000], asker="a")
    assert process.poll() is not None, "the process that was at work is dead"
    monkeypatch.undo()
    assert await found(mortal, "bob@example.com", ("email",)) == [("email", "bob@example.com")]


async def test_an_unknown_kind_is_no_empty_finding(finder: Finder) -> None:
    with pytest.raises(FinderFailed):
        await finder.find(["secret"], ["text 1"], asker="a")


def program(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "finder_process.py"
    path.write_text(text)
    return path


async def test_a_missing_package_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = finder_module._PROGRAM.read_text()
    without = program(tmp_path, source.replace("    from presidio_analyzer import p", "    from nowhere import p"))
    monkeypatch.setattr(finder_module, "_PROGRAM", without)
    finder = Finder()
    with pytest.raises(FinderMissing):
        await finder.find(["email"], ["bob@example.com"], asker="a")
    assert finder._process is None
    finder.close()


async def test_the_queue_of_an_organization_is_short_and_others_come_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder_module, "_PROGRAM", program(tmp_path, "import time; time.sleep(60)"))
    finder = Finder()
    waiting = []

    def start(asker: str) -> None:
        waiting.append(asyncio.ensure_future(finder.find(["email"], ["bob@example.com"], asker=asker)))

    for _ in range(1 + SEARCHES.waiting):
        start("hostile")
    await asyncio.sleep(0)
    with pytest.raises(FinderBusy):
        await finder.find(["email"], ["bob@example.com"], asker="hostile")
    start("another")
    await asyncio.sleep(0)
    assert not waiting[-1].done(), "the queue of one organization is no other's"
    for one in waiting[1:]:
        one.cancel()
    await asyncio.sleep(0.01)
    assert finder._thread.shares.held.total() == 1, "only the search in progress keeps its place"
    assert not finder._thread.shares.waiting("hostile")
    finder.close()
    finder._stop()
    with pytest.raises(FinderFailed):
        await waiting[0]


async def test_nothing_is_started_before_the_first_text() -> None:
    finder = Finder()
    assert finder._process is None
    finder.close()


async def test_a_telephone_number_right_behind_another_number_is_found_whole(finder: Finder) -> None:
    text = "card 4111 1111 1111 1111, or call +44 20 7946 0958 or (415) 555-2671; 12 3456789, +49 30 901820 end"
    assert [value for kind, value in await found(finder, text) if kind == "phone"] == [
        "+44 20 7946 0958",
        "(415) 555-2671",
        "+49 30 901820",
    ]


@pytest.mark.deep
async def test_the_process_ends_with_its_gateway(mortal: Finder) -> None:
    assert await found(mortal, "bob@example.com", ("email",))
    process, connection = mortal._process, mortal._socket
    assert process is not None and connection is not None
    connection.shutdown(2)  # as when the gateway is killed
    assert await asyncio.to_thread(process.wait, 60) == 0
    with pytest.raises(FinderFailed):
        await found(mortal, "bob@example.com", ("email",))
    assert await found(mortal, "bob@example.com", ("email",)), "the next text starts another one"


async def test_the_process_holds_no_credentials(finder: Finder) -> None:
    assert await found(finder, "bob@example.com", ("email",))
    assert finder._process is not None
    environment = Path(f"/proc/{finder._process.pid}/environ").read_bytes()
    assert {entry.partition(b"=")[0] for entry in environment.split(b"\0") if entry} == {b"PATH", b"HOME"}
