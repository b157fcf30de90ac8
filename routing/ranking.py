"""The replicas for one call, best first.

1. An adapter's homes by rendezvous; a conversation keeps to one of them by the same hash. One that says that it holds
   the KV of the conversation, and has the adapter, goes first.
2. A home whose load is far above the pool's, or whose wait is longer than the call can bear, yields to the next.
3. If all do, the better of two replicas at random (Mitzenmacher, 1996) takes the call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from routing.fleet import Fleet
from routing.homes import by_weight, home_count
from routing.views import View

MOST_CHOICES = 4
# Places behind the homes that are looked at before the choice is left to chance.
_NEXT = 3
_SAMPLED = 2


class Call(NamedTuple):
    """What matters of a call.

    adapter: key of its adapter, or of its base; conversation: key of its cache scope and the first tokens of its prompt
    rate: calls per second of the adapter, over all gateways; service_s: seconds that such a call holds a seat
    latency_class: 0 interactive, 1 standard, 2 batch; slack_s: seconds that it may wait
    prefill_s: seconds that its prompt takes where no part of it is cached; prompt_tokens: for replicas that say what a
        token takes
    """

    adapter: int
    conversation: int | None = None
    rate: float = 0.0
    service_s: float = 1.0
    latency_class: int = 1
    slack_s: float = 1.0
    prefill_s: float = 0.0
    prompt_tokens: int = 0


class Choice(NamedTuple):
    """A replica for a call: its place in the fleet, its name, and the seconds until its first token as predicted.

    home: whether it is one of the adapter's homes
    """

    place: int
    name: str
    cost_s: float
    home: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """The dial between warm adapters and an even load.

    bound: a home takes no call while its load is more than so many times the pool's mean
    free: but below this share of its seats a home always takes one
    """

    bound: float = 1.25
    free: float = 0.25


DEFAULT = Rule()


def rank(call: Call, fleet: Fleet, now: float, chance: random.Random, rule: Rule = DEFAULT) -> list[Choice]:
    """Return up to MOST_CHOICES replicas that take calls, best first; none where no replica does."""
    homes = home_count(call.rate, call.service_s, fleet.mean_seats) if len(fleet) > 1 else 1
    order = fleet.order(call.adapter, homes + _NEXT)
    at_home, behind = order[:homes], order[homes : homes + _NEXT]
    if homes > 1 and len(at_home) > 1 and call.conversation is not None:
        at_home = by_weight(call.conversation, at_home, fleet.keys_of(at_home))
    places = _held_first(call, (*at_home, *behind), fleet)
    best = _first_with_room(call, places, fleet, now, max(rule.free, rule.bound * fleet.mean_load))
    takes_calls = fleet.takes_calls
    others = [place for place in (*at_home[: _NEXT + 1], *behind) if takes_calls(place, now)]
    if best is None or len(others) < MOST_CHOICES:
        sampled = chance.sample(range(len(fleet)), min(len(fleet), max(_SAMPLED, MOST_CHOICES - len(others))))
        others = list(dict.fromkeys([*others, *(place for place in sampled if takes_calls(place, now))]))
    costs = _costs([place for place in others if place != best], call, fleet, now)
    costs.sort(key=_first)
    if best is not None:
        costs = [*_costs([best], call, fleet, now), *costs]
    views, known = fleet.views, at_home if homes <= _NEXT else set(at_home)
    return [Choice(place, views[place].name, cost, place in known) for cost, place in costs[:MOST_CHOICES]]


_first = itemgetter(0)


def _first_with_room(call: Call, places: Sequence[int], fleet: Fleet, now: float, most: float) -> int | None:
    """Return the first place with a load below `most` and a wait that the call can bear."""
    for place in places:
        if fleet.takes_calls(place, now):
            busy = fleet.busy(place, now)
            if busy / fleet.views[place].seats < most and _wait(fleet.views[place], busy, call) <= call.slack_s:
                return place
    return None


def _held_first(call: Call, places: Sequence[int], fleet: Fleet) -> Sequence[int]:
    """Return the places with those first that hold the KV of the call's conversation, and its adapter."""
    if call.conversation is None:
        return places
    views = fleet.views
    held = [at for at in places if call.conversation in views[at].prefixes and call.adapter in views[at].adapters]
    return [*held, *(place for place in places if place not in held)] if held else places


def _wait(view: View, busy: float, call: Call) -> float:
    """Return the seconds until a call starts: as the replica says, and for what changed since, a share of a service
    for each call above its seats."""
    seats, wait = view.seats, view.wait_s[call.latency_class]
    told = view.running + view.waiting - seats
    above = (busy - seats if busy > seats else 0.0) - (told if told > 0 else 0)
    if above:
        wait += above * call.service_s / seats
    return wait if wait > 0.0 else 0.0


def _costs(places: Sequence[int], call: Call, fleet: Fleet, now: float) -> list[tuple[float, int]]:
    """Return each place's predicted seconds until a call's first token, and the place: the wait, the load from where
    its adapter lies, the prompt unless its KV is held."""
    views, adapter, conversation, costs = fleet.views, call.adapter, call.conversation, []
    for place in places:
        view = views[place]
        cost = _wait(view, fleet.busy(place, now), call)
        if adapter not in view.adapters:
            cost += view.near_s if adapter in view.near else view.load_s
        if conversation is None or conversation not in view.prefixes:
            cost += call.prompt_tokens * view.token_s if view.token_s else call.prefill_s
        costs.append((cost, place))
    return costs
