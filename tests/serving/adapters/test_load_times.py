from __future__ import annotations

import threading

import pytest

from serving.adapters.load_times import LoadTimes
from tests.serving.adapters.fakes import Clock, Running, digest_of

A, B = digest_of(1), digest_of(2)


def test_one_slow_load_moves_the_expectation_by_a_part_of_it() -> None:
    times = LoadTimes(10)
    assert times.expected(A) == 0.0  # nobody knows yet
    for _ in range(20):
        times.learn(A, 0.1)
    times.learn(A, 1.1)
    assert times.expected(A) == pytest.approx(0.4)
    assert 0.1 < times.expected(B) < 0.25, "an adapter that was never loaded: the mean over all"


def test_an_adapter_has_its_own_size_and_so_its_own_time() -> None:
    times = LoadTimes(10)
    for _ in range(10):
        times.learn(A, 0.1)
        times.learn(B, 0.9)
    assert times.expected(A) == pytest.approx(0.1) and times.expected(B) == pytest.approx(0.9)
    assert 0.3 < times.expected("c") < 0.7


def test_a_load_that_runs_is_over_sooner_than_one_that_begins() -> None:
    times = LoadTimes(10)
    times.learn(A, 0.5)
    assert times.expected(A, elapsed=0.4) == pytest.approx(0.1)
    assert times.expected(A, elapsed=3.0) == 0.0


def test_only_so_many_adapters_are_remembered() -> None:
    times = LoadTimes(2)
    times.learn("old", 9.0)
    for digest in (A, B):
        times.learn(digest, 1.0)
    assert times.expected("old") == pytest.approx(times.expected("never")) != 9.0


def test_the_manager_counts_what_a_load_has_taken_already() -> None:
    clock = Clock()
    run = Running(clock=clock)
    run.load(A)
    whole = run.manager.cost(B).seconds
    assert whole > 0
    run.source.gates[B] = threading.Event()
    run.manager.want([B])
    run.at(B, "decrypting")
    clock.now += whole / 4
    assert run.manager.cost(B).seconds == pytest.approx(0.75 * whole)
    clock.now += whole
    assert run.manager.cost(B).seconds == 0.0
    run.source.gates[B].set()
    run.load(B)
    run.close()
