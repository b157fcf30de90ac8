"""A replica's views: what changed since the one before, and everything now and then."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

from marketplace.gateway.fleet.states import ReplicaState
from protocol.fleet import MAX_KEYS, LoadNow, decode_view, encode_view
from serving.platform.fleet_views import Snapshot, Views, key_of_digest
from tests.marketplace.gateway.fleet.ends import FIGURES

NOW = Snapshot(LoadNow(seats=8), FIGURES)


def test_a_view_comes_when_something_changed_and_once_a_second_otherwise() -> None:
    views = Views()
    assert views.next(NOW, 0.0) is not None
    assert views.next(NOW, 0.25) is None
    busy = replace(NOW, load=LoadNow(seats=8, running=1))
    assert views.next(busy, 0.5) is not None and views.next(busy, 0.75) is None
    assert views.next(busy, 1.5) is not None
    assert views.next(busy, 1.75, returned=["r"]) is not None
    assert views.seq == 4


def test_changes_make_the_sets_that_the_replica_has_and_a_full_view_comes_every_ten_seconds() -> None:
    chance, views, state = random.Random(1), Views(), None
    digests, fulls = [f"{number:064x}" for number in range(200)], 0
    for turn in range(120):
        has = Snapshot(
            LoadNow(),
            FIGURES,
            adapters=chance.sample(digests, 50),
            near=chance.sample(digests, 9),
            prefixes=chance.sample(range(99), 9),
        )
        view = views.next(has, turn * 0.25)
        assert view is not None
        view = decode_view(encode_view(view))
        fulls += view.full
        if state is None:
            state = ReplicaState.begun(uuid.uuid4(), "r", view, 0.0)
        assert state.take(view, 0.0) or turn == 0
        assert sorted(state.adapters) == sorted(map(key_of_digest, has.adapters))
        assert sorted(state.near) == sorted(map(key_of_digest, has.near))
        assert sorted(state.prefixes) == sorted(has.prefixes)
    assert fulls == 3


def test_two_thousand_residents_that_stay_cost_nothing() -> None:
    views, many = Views(), replace(NOW, adapters=[f"{number:064x}" for number in range(2_000)])
    first, second = views.next(many, 0.0), views.next(many, 1.0)
    assert first is not None and second is not None
    assert len(encode_view(first)) > 16_000 and len(encode_view(second)) < 200


def test_a_replica_that_has_more_than_a_view_may_tell_tells_as_much() -> None:
    view = Views().next(replace(NOW, prefixes=range(MAX_KEYS + 9)), 0.0)
    assert view is not None and len(decode_view(encode_view(view)).prefixes.added) == 8 * MAX_KEYS
