"""Revocation at every state: refused from that moment, plaintext and pages zeroed. The tests look at the memory."""

from __future__ import annotations

import threading

import pytest

from lora_kernels import Reservation
from serving.core import AdapterRef
from tests.serving.adapters.fakes import Clock, Running, digest_of

A, B, C = (digest_of(n) for n in range(1, 4))


def nothing_is_left(run: Running, *digests: str) -> None:
    assert not any(d in run.manager.states() for d in digests)
    assert run.weights_left() == 0 and run.source.memory == {} and run.plaintext_left() == 0
    assert run.pool.free_pages == run.pool.num_pages
    run.manager.check_integrity()


def test_while_it_is_decrypted() -> None:
    run = Running()
    gate = run.source.gates[A] = threading.Event()
    run.manager.want([A])
    run.until(lambda: run.source.loaded == [A])
    assert run.manager.revoke(A) == (A,)
    assert run.manager.is_revoked(A) and not run.manager.is_ready(A)
    run.manager.want([])
    gate.set()
    run.at(A, "cold")
    nothing_is_left(run, A)
    assert run.source.released == [A] and run.failed == []
    run.manager.want([A])
    run.turn()
    assert run.source.loaded == [A]  # refused: no lease is asked for
    run.close()


def test_while_it_waits_for_room_in_host_memory() -> None:
    run = Running(pages=1, slots=1)
    run.load(B)
    run.manager.pin(B)
    run.manager.want([A])
    run.at(A, "host")
    view = run.source.memory[A]
    assert view.count_nonzero() == len(view)
    run.manager.revoke(A)
    assert view.count_nonzero() == 0 and run.state(A) == "cold" and run.source.released == [A]  # at once
    run.manager.unpin(B)
    run.manager.revoke(B)
    nothing_is_left(run, A, B)
    run.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_while_it_is_copied(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    run = Running()
    writing, go_on = threading.Event(), threading.Event()
    write = Reservation.write

    def held_up(self: Reservation, what: object, **settings: object) -> None:
        if when == "after":
            write(self, what, **settings)  # type: ignore[arg-type]
        writing.set()
        assert go_on.wait(10)
        if when == "before":
            write(self, what, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(Reservation, "write", held_up)
    run.manager.want([A])
    assert writing.wait(10)
    assert run.state(A) == "copying"
    view = run.source.memory[A]
    run.manager.revoke(A)
    assert view.count_nonzero() == 0  # the plaintext at once, under the worker's hands
    assert run.manager.is_revoked(A)
    run.manager.want([])
    go_on.set()
    run.at(A, "cold")
    nothing_is_left(run, A)
    run.close()


def test_while_it_is_ready_and_idle() -> None:
    run = Running(host_bytes=1 << 20)
    run.load(A)
    assert run.weights_left() > 0 and run.source.memory.keys() == {A}  # pool and host copy
    run.manager.revoke(A)
    nothing_is_left(run, A)  # before anything else happens
    assert run.source.released == [A]
    run.close()


def test_while_sequences_run_on_it() -> None:
    run = Running(host_bytes=1 << 20)
    run.load(A)
    run.manager.pin(A)
    run.manager.pin(A)
    run.manager.revoke(A)
    assert run.state(A) == "draining" and not run.manager.is_ready(A)
    assert run.source.memory == {} and run.plaintext_left() == 0  # the host copy does not wait for them
    run.manager.unpin(A)
    assert run.weights_left() > 0
    run.manager.unpin(A)
    nothing_is_left(run, A)
    assert run.source.released == [A]
    run.close()


def test_a_cold_host_copy_is_wiped() -> None:
    run = Running(pages=1, slots=1, host_bytes=1 << 20)
    run.load(A)
    run.load(B)
    assert run.state(A) == "cold" and A in run.source.memory
    run.manager.revoke(A)
    assert run.source.memory.keys() == {B} and run.source.released == [A]
    run.close()


def test_a_readmitted_adapter_is_loaded_anew_even_when_its_killed_load_still_ends() -> None:
    run = Running()
    gate = run.source.gates[A] = threading.Event()
    run.manager.want([A])
    run.until(lambda: run.source.loaded == [A])
    run.manager.revoke(A)
    run.manager.readmit(A)
    gate.set()
    run.load(A)
    assert run.source.loaded == [A, A] and run.failed == []  # newer requests do not fail for the old load
    run.close()


def test_a_revoked_part_kills_the_blend_and_nobody_else() -> None:
    run = Running()
    blend = AdapterRef.blend([(A, 0.5), (B, 0.5)])
    assert blend.digest is not None
    for ref in (blend, AdapterRef(B)):
        run.manager.expect(ref)
    run.load(blend.digest)
    run.manager.pin(blend.digest)
    run.manager.pin(B)
    assert run.manager.revoke(A) == (A, blend.digest)
    assert run.manager.is_revoked(blend.digest) and not run.manager.is_revoked(B)
    assert not run.manager.is_ready(blend.digest) and run.manager.is_ready(B)
    run.manager.unpin(blend.digest)  # the engine has failed its sequences
    run.manager.forget(blend)
    assert run.manager.states() == {B: "ready"}
    assert run.manager.residents.entries[B].pins == 1
    run.manager.unpin(B)
    run.manager.forget(AdapterRef(B))
    run.manager.revoke(B)
    nothing_is_left(run, A, B, blend.digest)
    run.close()


def test_a_part_revoked_while_the_blend_waits_for_it_kills_the_blend() -> None:
    run = Running()
    gate = run.source.gates[B] = threading.Event()
    blend = AdapterRef.blend([(A, 0.5), (B, 0.5)])
    assert blend.digest is not None
    run.manager.expect(blend)
    run.manager.want([blend.digest])
    run.until(lambda: run.state(A) == "ready")
    assert run.manager.revoke(B) == (B, blend.digest)
    run.manager.forget(blend)
    gate.set()
    run.at(B, "cold")
    run.manager.want([])
    assert run.state(blend.digest) == "cold" and run.state(A) == "ready"
    run.close()


def test_a_lease_that_ends_in_the_middle_of_a_storm_leaves_no_plaintext() -> None:
    clock = Clock()
    run = Running(pages=3, slots=3, workers=2, host_bytes=1 << 15, clock=clock)
    digests = [digest_of(n) for n in range(8)]
    for turn in range(200):
        clock.now += 0.05
        run.manager.want(digests[turn % 8 :] + digests[: turn % 8])
        run.turn()
        if turn % 3 == 0:
            run.manager.revoke(digests[turn % 8])
        if turn % 4 == 0:
            run.manager.readmit(digests[(turn + 3) % 8])
    run.manager.want([])
    for digest in digests:
        run.manager.revoke(digest)
    run.until(lambda: not run.manager.states())
    nothing_is_left(run, *digests)
    run.close()
