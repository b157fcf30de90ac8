"""Sets of keys are what their changes make of them."""

from __future__ import annotations

import random

from routing import Call, Fleet, KeySet, View, key_of, rank


def packed(*keys: int) -> bytes:
    return b"".join(key.to_bytes(8, "big") for key in keys)


def test_changes_make_the_set_that_python_would_have_made() -> None:
    chance, ours, theirs = random.Random(1), KeySet(), set[int]()
    for _ in range(200):
        added = [chance.getrandbits(64) for _ in range(chance.randrange(8))] + [0, 2**64 - 1][: chance.randrange(3)]
        removed = [*chance.sample(sorted(theirs), min(len(theirs), chance.randrange(6))), chance.getrandbits(64)]
        ours = ours.changed(packed(*added), packed(*removed))
        theirs = (theirs - set(removed)) | set(added)
        assert list(ours) == sorted(theirs) and len(ours) == len(theirs)
    assert all(key in ours for key in theirs) and chance.getrandbits(64) not in ours and "x" not in ours
    assert KeySet.of_bytes(ours.packed()) == ours
    assert KeySet.of_bytes(packed(3, 1, 3)) == KeySet().changed(packed(1, 3), b"") != KeySet()


def test_a_change_that_comes_twice_changes_nothing_more() -> None:
    once = KeySet().changed(packed(1, 2), packed(3))
    assert once.changed(packed(1, 2), packed(3)) == once and once.changed(b"", b"") is once


def test_a_conversation_goes_where_its_prefix_and_its_adapter_lie_while_there_is_room() -> None:
    adapter, talk = key_of("a"), key_of("talk")
    warm = KeySet.of_bytes(packed(adapter))
    fleet = Fleet(View(f"r{number}", 0.0, 16, adapters=warm) for number in range(4))
    order = [choice.place for choice in rank(Call(adapter, talk), fleet, 0.0, random.Random(0))]
    behind = fleet.order(adapter, 4)[2]
    assert order[0] != behind
    held = View(f"r{behind}", 0.0, 16, adapters=warm, prefixes=KeySet.of_bytes(packed(talk)))
    fleet.update(held)
    assert rank(Call(adapter, talk), fleet, 0.0, random.Random(0))[0].place == behind
    assert rank(Call(adapter, key_of("other")), fleet, 0.0, random.Random(0))[0].place == order[0]
    fleet.update(View(held.name, 0.0, 16, 16, 9, (9.0,) * 3, adapters=warm, prefixes=held.prefixes))
    assert rank(Call(adapter, talk), fleet, 0.0, random.Random(0))[0].place == order[0], "it is full"


def test_the_cost_is_wait_and_load_from_where_it_lies_and_the_prompt_that_is_not_held() -> None:
    adapter, talk = key_of("a"), key_of("talk")
    one, other = KeySet.of_bytes(packed(adapter)), KeySet.of_bytes(packed(talk))
    about = {"load_s": 0.5, "near_s": 0.1, "token_s": 0.01}
    fleet = Fleet(
        [
            View("here", 0.0, 4, adapters=one, prefixes=other, **about),
            View("near", 0.0, 4, near=one, **about),
            View("cold", 0.0, 4, **about),
        ]
    )
    costs = {
        c.name: round(c.cost_s, 6) for c in rank(Call(adapter, talk, prompt_tokens=20), fleet, 0.0, random.Random(0))
    }
    assert costs == {"here": 0.0, "near": 0.3, "cold": 0.7}


def test_an_answer_s_load_renews_a_view_and_revives_no_lost_replica() -> None:
    fleet = Fleet([View("one", 1.0, 8, adapters=KeySet.of_bytes(packed(7)))])
    fleet.note_sent(0)
    load = {"running": 5, "waiting": 1, "wait_s": (1.0, 2.0, 3.0), "draining": False}
    fleet.told_load("one", 2.0, **load)
    assert (fleet.busy(0, 2.0), fleet.views[0].wait_s, 7 in fleet.views[0].adapters) == (6, (1.0, 2.0, 3.0), True)
    fleet.told_load("one", 1.5, **load | {"running": 0})
    assert fleet.views[0].running == 5, "it was told before"
    fleet.told_load("other", 3.0, **load)
    fleet.lost(0)
    fleet.told_load("one", 3.0, **load)
    assert len(fleet) == 1 and not fleet.takes_calls(0, 3.0)
