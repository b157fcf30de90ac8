"""Blends in the manager: assembled from their parts without a copy, pinned to them, gone with them."""

from __future__ import annotations

import pytest
import torch

from lora_kernels import BatchMetadata, lora_apply
from serving.adapters.residents import PATIENCE_SECONDS
from serving.core import AdapterRef
from serving.errors import AdapterUnavailable
from tests.serving.adapters.fakes import Clock, Running, Source, digest_of, refused

A, B, C, D = (digest_of(n) for n in range(1, 5))
BLEND = AdapterRef.blend([(A, 0.75), (B, -0.5)])
NAME = str(BLEND.digest)


def outputs(run: Running, digest: str) -> torch.Tensor:
    x, y = torch.linspace(-1, 1, 64).view(2, 32), torch.zeros(2, 64)
    meta = BatchMetadata.build([run.manager.slot(digest)], [2], run.pool)
    lora_apply(y, x, "qkv", 1, meta)
    return y


def test_a_blend_answers_as_the_weighted_sum_of_its_parts_and_takes_no_pages() -> None:
    run = Running()
    run.manager.expect(BLEND)
    run.load(NAME)
    assert run.manager.is_ready(A) and run.manager.is_ready(B) and run.pool.free_pages == 2
    expected = 0.75 * outputs(run, A) - 0.5 * outputs(run, B)
    torch.testing.assert_close(outputs(run, NAME), expected, rtol=1e-4, atol=1e-3)
    assert run.manager.counters.blends == 1 and run.manager.cost(NAME).rank == 32
    run.close()
    assert run.weights_left() == 0 and sorted(run.source.released) == [A, B]


def test_parts_stay_while_their_blend_is_used_and_go_after_it() -> None:
    run = Running(pages=2, slots=4)
    run.manager.expect(BLEND)
    run.load(NAME)
    run.manager.pin(NAME)
    run.manager.want([C])
    run.at(C, "host")
    run.turn()
    assert all(run.manager.is_ready(d) for d in (A, B, NAME))
    run.manager.unpin(NAME)
    run.manager.forget(BLEND)
    run.at(C, "ready")
    assert run.state(NAME) == "cold" and run.manager.counters.evictions >= 2
    run.close()


def test_a_blend_that_came_first_is_not_deadlocked_by_another_that_holds_half_the_room() -> None:
    clock, other = Clock(), AdapterRef.blend([(C, 0.5), (D, 0.5)])
    run = Running(pages=2, slots=3, workers=2, clock=clock)
    run.manager.expect(BLEND)
    run.manager.expect(other)
    run.load(A)
    run.load(C)  # each blend has one part, and no room for its second
    for ref in (BLEND, other):
        done = False
        for _ in range(4000):
            wanted = [r.digest for r in (BLEND, other) if r.digest and not run.manager.is_ready(r.digest)]
            run.manager.want(wanted)
            clock.now += PATIENCE_SECONDS / 50
            run.arrived.wait(0.001)
            run.turn()
            if run.manager.is_ready(ref.digest):
                done = True
                run.manager.pin(ref.digest)
                run.manager.unpin(ref.digest)
                run.manager.forget(ref)
                break
        assert done, run.manager.states()
    run.close()


def test_a_blend_fails_with_the_part_that_fails() -> None:
    run = Running()
    run.source.problems[B] = refused("gone")
    run.manager.expect(BLEND)
    run.manager.want([NAME])
    run.until(lambda: bool(run.failed))
    assert {digest for digest, _ in run.failed} == {B, NAME}
    run.manager.want([])
    run.manager.forget(BLEND)
    assert run.state(A) in ("ready", "decrypting", "copying")
    run.close()


def test_a_blend_with_more_ranks_than_a_slot_can_list_is_refused() -> None:
    run = Running(Source({A: 48, B: 48}), pages=8, slots=4)
    run.manager.expect(BLEND)
    run.manager.want([NAME])
    run.until(lambda: bool(run.failed))
    assert run.failed[0][0] == NAME and isinstance(run.failed[0][1], AdapterUnavailable)
    assert "cannot be served" in str(run.failed[0][1])
    run.close()


@pytest.mark.parametrize("times", [3])
def test_a_blend_used_again_needs_no_load(times: int) -> None:
    run = Running()
    for _ in range(times):
        run.manager.expect(BLEND)
        run.load(NAME)
        run.manager.pin(NAME)
        run.manager.unpin(NAME)
        run.manager.forget(BLEND)
    assert run.source.loaded == [A, B] and run.manager.counters.blends == 1
    run.close()
