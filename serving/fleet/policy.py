"""How many replicas a pool should have: a pure function, without a clock and without I/O.

    wanted = the most of
      demand       seats that calls keep taken / the share of a replica's seats that may be
      slack        a quarter more while predicted waits are above their targets, twice as many if that did not help
      working set  pages of adapters worth keeping / pages of a replica, where loads cost more than 5 % of the time

Demand is more than what arrives now: it rises while a replica starts, by a rise that stands out of chance, and by what
it may change by chance in that time, which is learned from the last hour. The count goes up at once and down by one
replica at a time, when less would have done for ten minutes, with what demand usually changes in these, and would have
borne the last hour. A figure that is missing never takes a replica away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from serving.fleet.rises import (
    QUICK_SECONDS,
    SMOOTH_SECONDS,
    faded,
    grown,
    headroom,
    leapt,
    margin,
    risen,
    usual_change,
)
from serving.fleet.targets import Limits

__all__ = ["Limits", "PolicyState", "PoolFigures", "decide"]

# The time constant of the length of calls, which changes slowly.
_SERVICE_SECONDS = 300.0
# Minutes of which ten are whole: the last is under way, and one more before them, as the first of all was.
_CALM_MINUTES, _HOUR_MINUTES = 11, 60
_CALM_SECONDS = 600.0
# A replica that drains has mostly ended by then, and what that did to the others is seen.
_STEP_DOWN_SECONDS = 30.0
# After this the replicas that were ordered for a breach should have shortened the waits.
_SETTLE_SECONDS = 15.0
# A replica that takes longer than its usual time to start by this factor is not waited for.
_OVERDUE = 1.5
_BREACH_GROWTH, _SECOND_GROWTH = 1.25, 2.0
_RELOAD_SHARE = 0.05
# Queues that made a pool late are to be gone so long after their answer is ready.
_CLEAR_SECONDS = 60.0
# A pool whose seats are filled to this share has a queue.
_FULL = 0.95
# In the last hour, before a step down.
_TIMES_FULL = 1


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """A pool at one moment. Every figure may be missing (None): nothing tells it, or nothing that has warmed up.

    now: seconds of the caller's clock; replicas: ordered ones, ready or not; ready: those that take calls
    arrivals: calls per second over the last seconds, the refused ones too
    service_s: seconds that a call holds a seat; seats: of one replica; busy: calls that run or wait
    wait_over_target: the predicted wait that 95 % of calls stay below, over what their classes may wait
    reload_share: seconds of loads of adapters per second that replicas are busy
    pages_wanted: pages of adapters worth keeping, in the pool; pages_each: pages of one replica
    """

    now: float
    replicas: int
    ready: int
    arrivals: float | None = None
    service_s: float | None = None
    seats: float | None = None
    busy: int | None = None
    wait_over_target: float | None = None
    reload_share: float | None = None
    pages_wanted: float | None = None
    pages_each: float | None = None


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a pool's policy remembers between two decisions; `PolicyState()` is the start.

    why: the reason of the last decision, in words for staff
    at: when that was; smooth, quick: seats that calls keep taken, faded over a minute and over a third of one
    service_s, seats: as last measured
    minute: the number of the minute under way; needs: the most replicas needed, relaxed, in it and those before, newest
    last; demands: seats taken in these minutes, of the last hour; change: the share by which they usually change
    answered: replicas that the breach under way was answered with, 0 outside one; breaches: answers of it
    ordered_at: when the last of them was ordered; settled_at: when its effect is looked at; wait: the wait before that
    stepped_at: when the last step down was
    """

    why: str = "start"
    at: float = -math.inf
    smooth: float = 0.0
    quick: float = 0.0
    service_s: float = 0.0
    seats: float = 0.0
    minute: int = -1
    needs: tuple[int, ...] = ()
    demands: tuple[float, ...] = ()
    change: float | None = None
    answered: int = 0
    breaches: int = 0
    ordered_at: float = -math.inf
    settled_at: float = math.inf
    wait: float = 0.0
    stepped_at: float = -math.inf


def decide(state: PolicyState, figures: PoolFigures, limits: Limits) -> tuple[int, PolicyState]:
    """Return how many replicas the pool should have, and the state for the next decision.

    Call it every second or two: the rules count in seconds of `figures.now`, not in calls.
    """
    state, work = _learn(state, figures)
    demand, why = _demand(state, figures, limits, work)
    keeping = _working_set(figures, limits)
    state, breach = _slack(state, figures, limits)
    wanted, why = max((demand, why), (keeping, "working set"), (breach, "slack"), key=lambda one: one[0])
    state = _remember(state, figures, limits, known=work is not None)
    count = figures.replicas
    if wanted < count:
        if _may_step_down(state, figures):
            wanted, why, state = count - 1, "less is enough", replace(state, stepped_at=figures.now)
        else:
            wanted, why = count, "held" if work is not None else "held: figures are missing"
    if wanted < limits.least:
        wanted, why = limits.least, "floor"
    elif wanted > limits.most:
        wanted, why = limits.most, f"{why}, at the most allowed"
    return wanted, replace(state, why=why, at=figures.now)


def _learn(state: PolicyState, figures: PoolFigures) -> tuple[PolicyState, float | None]:
    """Take what was measured; return with it the seats that arriving calls keep taken, None if that is not known."""
    passed = figures.now - state.at
    service, measured = state.service_s, figures.service_s
    if measured is not None:
        service += (measured - service) * faded(passed, _SERVICE_SECONDS) if service else measured
    state = replace(state, service_s=service, seats=figures.seats or state.seats)
    if figures.arrivals is None or (figures.arrivals > 0 and not service):
        return state, None
    work = figures.arrivals * service
    smooth = state.smooth + (work - state.smooth) * faded(passed, SMOOTH_SECONDS)
    quick = state.quick + (work - state.quick) * faded(passed, QUICK_SECONDS)
    return replace(state, smooth=smooth, quick=quick), work


def _demand(state: PolicyState, figures: PoolFigures, limits: Limits, work: float | None) -> tuple[int, str]:
    """Return the replicas that bear, at the ceiling, what demand will be when a replica ordered now is ready."""
    if figures.arrivals is not None and figures.arrivals > 0 and not (state.service_s and state.seats):
        return max(1, _by_mu(figures.arrivals, limits)) + limits.spare, "demand"
    if work is None or not state.seats:
        return 0, "demand"
    if _idle(figures, limits):
        return 0, "no demand"
    ready, service = limits.ready_seconds, state.service_s
    growth = grown(state.demands, service_s=service, seconds=ready)
    coming = state.smooth + max(growth, state.smooth * headroom(state.change, ready))
    rise = risen(state.quick, state.smooth, state.demands, service_s=service, ready_seconds=ready)
    steady = _fewest(coming / state.seats, limits.ceiling_of)
    burst = _fewest(max(rise, leapt(work, state.quick, service_s=service)) / state.seats, limits.ceiling_of)
    return max(1, steady, burst) + limits.spare, "burst" if burst > steady else "demand"


def _by_mu(arrivals: float, limits: Limits) -> int:
    if not limits.mu:
        return 1
    return next((n for n in range(1, limits.most) if n * (limits.mu_of(n) or 0.0) >= arrivals), limits.most)


def _fewest(replicas_full: float, share: Callable[[int], float]) -> int:
    """Return the fewest replicas of which at most a share is filled by what would fill so many."""
    count = max(1, math.ceil(replicas_full - 1e-9))
    while count * share(count) < replicas_full - 1e-9:
        count += 1
    return count


def _working_set(figures: PoolFigures, limits: Limits) -> int:
    if figures.reload_share is None or figures.reload_share <= _RELOAD_SHARE or not figures.pages_each:
        return 0
    pages = limits.working_set if figures.pages_wanted is None else figures.pages_wanted
    return math.ceil(pages / figures.pages_each)


def _slack(state: PolicyState, figures: PoolFigures, limits: Limits) -> tuple[PolicyState, int]:
    """Answer waits above their targets; the next answer waits until the last one had its effect."""
    wait, now = figures.wait_over_target, figures.now
    if wait is None:
        return state, 0
    if wait <= 1.0:
        return replace(state, answered=0, breaches=0, settled_at=math.inf), 0
    if not state.answered:
        state = _order(state, figures, limits, _BREACH_GROWTH)
        return state, state.answered
    overdue = now - state.ordered_at > _OVERDUE * limits.ready_seconds
    if figures.ready < state.answered and not overdue:
        return state, state.answered
    if state.settled_at == math.inf:
        return replace(state, settled_at=now + _SETTLE_SECONDS, wait=wait), state.answered
    if now < state.settled_at:
        return state, state.answered
    if wait < 0.9 * state.wait:  # the queues shrink: what is ready is enough
        return replace(state, settled_at=now + _SETTLE_SECONDS, wait=wait), state.answered
    state = _order(state, figures, limits, _SECOND_GROWTH)
    return state, state.answered


def _order(state: PolicyState, figures: PoolFigures, limits: Limits, growth: float) -> PolicyState:
    """Return the state of a breach that was just answered: enough for what arrives and for the queues, too."""
    answered = max(figures.ready + 1, math.ceil(growth * figures.ready))
    if state.seats and figures.busy is not None:
        queued = max(0.0, figures.busy - figures.ready * state.seats)
        full = (state.quick + queued * state.service_s / _CLEAR_SECONDS) / state.seats
        answered = max(answered, _fewest(full, limits.ceiling_of))
    return replace(
        state,
        answered=answered,
        breaches=state.breaches + 1,
        ordered_at=figures.now,
        settled_at=math.inf,
        wait=figures.wait_over_target or 0.0,
    )


def _remember(state: PolicyState, figures: PoolFigures, limits: Limits, *, known: bool) -> PolicyState:
    """Note the minute's demand, and the replicas that it needs by the relaxed rule; all of them while it is unknown."""
    if not known or (figures.wait_over_target or 0.0) > 1.0:
        need = figures.replicas
    elif _idle(figures, limits):
        need = 0
    else:
        besides = margin(state.change, seconds=_CALM_SECONDS, ready_seconds=limits.ready_seconds)
        full = state.smooth * (1.0 + besides) / state.seats if state.seats else 0.0
        need = max(_fewest(full, limits.ceiling_of) + limits.spare, _working_set(figures, limits))
    minute = int(figures.now // 60)
    needs, demands = state.needs, state.demands
    if minute == state.minute and needs:
        needs, demands = (*needs[:-1], max(needs[-1], need)), (*demands[:-1], max(demands[-1], state.smooth))
    elif minute == state.minute + 1:
        needs = (*needs, need)[-_CALM_MINUTES - 1 :]
        state = replace(state, change=usual_change(demands))
        demands = (*demands, state.smooth)[-_HOUR_MINUTES:]
    else:  # the first minute, or one after a gap of which nothing is known
        needs, demands = (need,), (*demands, state.smooth)[-_HOUR_MINUTES:]
    return replace(state, minute=minute, needs=needs, demands=demands)


def _idle(figures: PoolFigures, limits: Limits) -> bool:
    """Return whether the pool may be scaled to zero and has nothing to do."""
    return limits.least == 0 and figures.arrivals == 0 and not figures.busy


def _may_step_down(state: PolicyState, figures: PoolFigures) -> bool:
    """Return whether one replica less would have done for ten minutes, and bears the last hour's arrivals."""
    fewer = figures.replicas - 1
    return (
        len(state.needs) > _CALM_MINUTES
        and max(state.needs[-_CALM_MINUTES:]) <= fewer
        and figures.ready >= figures.replicas
        and figures.now - state.stepped_at >= _STEP_DOWN_SECONDS
        and (fewer == 0 or _bears(fewer, state))
    )


def _bears(replicas: int, state: PolicyState) -> bool:
    """Return whether so many replicas would have borne the last hour, with what would have been started meanwhile.

    Demand that fills them once is answered by a start; where it came back within the hour, it is expected again.
    """
    full = [demand > replicas * state.seats * _FULL for demand in state.demands]
    return sum(now and not before for before, now in zip([False, *full], full, strict=False)) <= _TIMES_FULL
