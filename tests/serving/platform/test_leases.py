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


def test_a_lease_ends_two_seconds_before_the_vaults_counted_from_when_it_was_asked_for(table: Table) -> None:
    table.clock.now += 4  # the answer took four seconds
    assert table.grant("r1", A, 30, asked_at=1000.0)
    table.renew([], {}, asked_at=1004.0)
    table.at(27.9)
    assert table.is_live(A) and table.ended == []
    table.clock.now = 1028.0
    assert not table.is_live(A)  # at once, before anyone expired it
    table.expire()
    assert table.ended == [A] and table.held() == []


def test_an_answer_that_comes_after_its_lease_is_over_grants_nothing(table: Table) -> None:
    table.clock.now += 28
    assert not table.grant("r1", A, 30, asked_at=1000.0)
    assert not table.is_live(A)


def test_a_renewed_lease_lives_on_and_one_missing_from_the_answer_is_over(table: Table) -> None:
    table.grant("r1", A, 30, asked_at=1000.0)
    table.grant("r2", B, 30, asked_at=1000.0)
    table.clock.now += 20
    table.renew(["r1", "r2"], {"r1": 30}, asked_at=1020.0)
    assert table.ended == [B]
    table.at(47.9)
    assert table.is_live(A)
    table.at(48)
    assert not table.is_live(A)


def test_a_lease_granted_while_a_heartbeat_was_under_way_is_not_ended_by_its_answer(table: Table) -> None:
    table.grant("r2", B, 30, asked_at=1000.0)
    table.renew(["r1"], {}, asked_at=1000.0)
    assert table.is_live(B) and table.ended == []


def test_without_heartbeats_for_28_seconds_everything_ends_whatever_the_leases_say(table: Table) -> None:
    table.grant("r1", A, 3600, asked_at=1000.0)
    table.at(27.9)
    assert table.is_live(A)
    table.clock.now = 1028.0
    assert not table.is_live(A)
    table.expire()
    assert table.ended == [A]


def test_a_heartbeat_counts_from_when_it_was_sent(table: Table) -> None:
    table.grant("r1", A, 3600, asked_at=1000.0)
    table.clock.now = 1027.0
    table.renew(["r1"], {"r1": 3600}, asked_at=1002.0)
    table.at(29.9)
    assert table.is_live(A)
    table.at(30)
    assert table.ended == [A]


def test_a_revoked_digest_ends_and_is_never_granted_again(table: Table) -> None:
    table.grant("r1", A, 30, asked_at=1000.0)
    table.revoke([A])
    assert table.ended == [A] and table.is_revoked(A) and not table.is_live(A)
    assert not table.grant("r2", A, 30, asked_at=1000.0)
    assert not table.is_live(A)


def test_a_digest_with_a_second_live_lease_goes_on(table: Table) -> None:
    table.grant("r1", A, 10, asked_at=1000.0)
    table.grant("r2", A, 20, asked_at=1000.0)
    table.at(11)
    assert table.ended == [] and table.is_live(A) and table.held() == ["r2"]


def test_giving_a_lease_back_is_quiet_and_losing_the_session_is_not(table: Table) -> None:
    table.grant("r1", A, 30, asked_at=1000.0)
    table.give_back(A)
    assert table.ended == [] and table.held() == []
    table.grant("r2", B, 30, asked_at=1000.0)
    table.drop_all()
    assert table.ended == [B]


def test_a_lease_runs_out_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 50.0, time.CLOCK_MONOTONIC: 50.0}
    monkeypatch.setattr(leases.time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(leases.time, "monotonic", lambda: clocks[time.CLOCK_MONOTONIC])
    table = LeaseTable()
    assert table.grant("r1", A, 30, asked_at=table.now())
    clocks[time.CLOCK_BOOTTIME] += 28  # the other clock stood still meanwhile
    assert not table.is_live(A)
