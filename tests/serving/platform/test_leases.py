"""Leases on a fake clock: expiry, renewal, revocation, and the dark side of a partition."""

from __future__ import annotations

import time

import pytest

from serving.platform import leases
from serving.platform.leases import LeaseTable

A, B = "aa" * 32, "bb" * 32


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Table(LeaseTable):
    """A lease table that remembers what it announced."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(self.clock)
        self.ended: list[str] = []
        self.on_end = self.ended.append

    def at(self, seconds: float) -> None:
        self.clock.now = 1000.0 + seconds
        self.expire()


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_lease_lives_while_the_platform_answers_and_ends_two_seconds_before_the_vaults(table: Table) -> None:
    assert table.grant("r1", A, asked_at=1000.0)
    table.clock.now += 20
    table.renew(asked_at=1010.0)  # counted from when it was said, however late the answer is
    table.at(37.9)
    assert table.is_live(A) and table.ended == []
    table.clock.now = 1038.0
    assert not table.is_live(A)  # at once, before anyone expired it
    table.expire()
    assert table.ended == [A] and table.held() == []


def test_a_word_of_before_the_last_one_renews_nothing(table: Table) -> None:
    table.grant("r1", A, asked_at=1000.0)
    table.renew(asked_at=1020.0)
    table.renew(asked_at=1005.0)
    table.at(47.9)
    assert table.is_live(A)
    table.at(48)
    assert table.ended == [A]


def test_a_key_that_comes_when_the_platform_was_silent_for_too_long_is_not_used(table: Table) -> None:
    table.clock.now += 28
    assert not table.grant("r1", A, asked_at=1000.0)
    assert not table.is_live(A) and table.returned(9) == ["r1"], "and the platform hears that it is not held"


def test_a_revoked_digest_ends_and_is_never_granted_again(table: Table) -> None:
    table.grant("r1", A, asked_at=1000.0)
    assert table.revoke([A, B]) == [A, B] and table.revoke([A]) == []
    assert table.ended == [A] and table.is_revoked(A) and not table.is_live(A)
    assert not table.grant("r2", A, asked_at=1000.0)
    assert not table.is_live(A)


def test_a_lease_that_ended_while_its_key_was_on_the_way_is_not_granted(table: Table) -> None:
    table.grant("r1", A, asked_at=1000.0)
    table.end(["r1", "r2"])
    assert table.ended == [A]
    assert not table.grant("r2", A, asked_at=1000.0)
    assert table.grant("r3", A, asked_at=1000.0), "the digest itself is not revoked"


def test_a_key_that_a_lost_session_asked_for_is_not_granted_to_the_next(table: Table) -> None:
    table.clock.now += 1
    table.drop_all()
    table.renew(asked_at=1001.5)
    assert not table.grant("r1", A, asked_at=1000.5)
    assert table.grant("r2", A, asked_at=1001.0)


def test_a_digest_with_a_second_live_lease_goes_on(table: Table) -> None:
    table.grant("r1", A, asked_at=1000.0)
    table.grant("r2", A, asked_at=1000.0)
    table.end(["r1"])
    assert table.ended == [] and table.is_live(A) and table.held() == ["r2"]


def test_what_was_given_back_is_told_until_the_platform_has_it(table: Table) -> None:
    table.grant("r1", A, asked_at=1000.0)
    table.grant("r2", B, asked_at=1000.0)
    table.give_back(A)
    table.give_back(B)
    assert table.returned(1) == ["r1"] and table.returned(9) == ["r1", "r2"]
    table.confirm_returned(["r1"])
    assert table.returned(9) == ["r2"]
    table.drop_all()
    assert table.returned(9) == [], "the leases of a lost session are over"


def test_giving_a_lease_back_is_quiet_and_losing_the_session_is_not(table: Table) -> None:
    table.grant("r1", A, asked_at=1000.0)
    table.give_back(A)
    assert table.ended == [] and table.held() == []
    table.grant("r2", B, asked_at=1000.0)
    table.drop_all()
    assert table.ended == [B]


def test_a_lease_runs_out_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 50.0, time.CLOCK_MONOTONIC: 50.0}
    monkeypatch.setattr(leases.time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(leases.time, "monotonic", lambda: clocks[time.CLOCK_MONOTONIC])
    table = LeaseTable()
    assert table.grant("r1", A, asked_at=table.now())
    clocks[time.CLOCK_BOOTTIME] += 28  # the other clock stood still meanwhile
    assert not table.is_live(A)
