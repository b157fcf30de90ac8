"""What views add up to, what a link may cost, and what is told once: without connections."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from marketplace.gateway.fleet.links import Bucket, Link
from marketplace.gateway.fleet.states import ReplicaState
from protocol.errors import ProtocolError
from protocol.fleet import MAX_KEYS, MAX_NEWS, FleetView, KeyChange, LoadNow, pack_keys

ID = uuid.uuid4()


def view(
    seq: int, added: Sequence[int] = (), removed: Sequence[int] = (), *, full: bool = False, running: int = 0
) -> FleetView:
    keys = KeyChange(pack_keys([*added]), pack_keys([*removed]))
    return FleetView(seq, full, LoadNow(8, running), adapters=keys)


def test_a_view_behind_a_lost_one_counts_with_its_load_alone_until_the_next_full_one() -> None:
    state = ReplicaState.begun(ID, "r", view(1, [1, 2], full=True), 0.0)
    assert state.take(view(2, [3]), 1.0) and list(state.adapters) == [1, 2, 3]
    assert not state.take(view(4, [5], [1], running=7), 2.0)
    assert (list(state.adapters), state.view.load.running) == ([1, 2, 3], 7), "the third is lost"
    assert not state.take(view(5, [6]), 3.0) and list(state.adapters) == [1, 2, 3]
    assert state.take(view(6, [1, 5, 6], full=True), 4.0) and list(state.adapters) == [1, 5, 6]
    assert state.take(view(7, [], [5]), 5.0) and list(state.adapters) == [1, 6]


def test_a_state_that_begins_in_the_middle_is_not_whole_and_a_full_view_of_it_makes_another() -> None:
    late = ReplicaState.begun(ID, "r", view(9, [1], [2]), 0.0)
    assert not late.whole and len(late.adapters) == 0
    whole = ReplicaState.begun(ID, "r", view(1, [4, 2], full=True), 0.0)
    whole.take(view(2, [3]), 1.0)
    assert late.take(whole.full_view(), 1.0) and late.adapters == whole.adapters
    assert late.take(view(3, [], [4]), 2.0) and list(late.adapters) == [2, 3]


def test_a_rate_has_room_for_a_burst_and_then_makes_wait() -> None:
    now = 0.0
    bucket = Bucket(5.0, 10.0, lambda: now)
    assert [bucket.take(1) for _ in range(10)] == [0.0] * 10
    assert bucket.take(1) == pytest.approx(0.2) and bucket.take(1) == pytest.approx(0.4)
    now = 100.0
    assert bucket.take(10) == 0.0 and bucket.take(5) == pytest.approx(1.0)


def linked() -> Link:
    link = Link(ID, "r", b"")
    link.take(view(1, full=True), 0.0)
    return link


@pytest.mark.asyncio
async def test_a_link_begins_with_a_full_view_and_counts() -> None:
    for first in (view(2, full=True), view(1)):
        with pytest.raises(ProtocolError):
            Link(ID, "r", b"").take(first, 0.0)
    for next_one in (view(1), view(3), view(3, full=True)):
        with pytest.raises(ProtocolError):
            linked().take(next_one, 1.0)


@pytest.mark.asyncio
async def test_a_replica_that_names_ever_more_keys_or_leases_is_left() -> None:
    link, key, seq = linked(), iter(range(1 << 40)), 1
    with pytest.raises(ProtocolError, match="keys"):
        while seq < 99:
            seq += 1
            link.take(view(seq, [next(key) for _ in range(MAX_KEYS // 4)]), 0.0)
    link, seq = linked(), 1
    with pytest.raises(ProtocolError, match="leases"):
        while seq < 99:
            seq += 1
            link.take(FleetView(seq, False, LoadNow(), returned=tuple(str(uuid.uuid4()) for _ in range(1_000))), 0.0)


@pytest.mark.asyncio
async def test_what_ended_is_told_once_in_pieces_and_what_is_past_is_forgotten() -> None:
    link = linked()
    many = [f"{number:064x}" for number in range(MAX_NEWS + 5)]
    link.tell_ended(many, [])
    first, second = link.news(), link.news()
    assert first is not None and second is not None
    assert [*first.revoked, *second.revoked] == many and len(first.revoked) == MAX_NEWS
    link.tell_ended(many, [])
    assert link.news() is None and not link.wake.is_set()
    link.tell_ended([], [])
    assert not link._revoked.said, "the books say that it is long ago"
    link.tell_renewed(1)
    link.hint(["aa" * 32])
    news = link.news()
    assert news is not None and (news.renewed, news.prefetch) == (1, ("aa" * 32,))
    assert link.news() is None


@pytest.mark.asyncio
async def test_hints_that_are_not_read_do_not_gather() -> None:
    link = linked()
    link.hint(f"{number:064x}" for number in range(10_000))
    news = link.news()
    assert news is not None and len(news.prefetch) == 64 and news.prefetch[-1] == f"{9_999:064x}"
    await asyncio.sleep(0)
