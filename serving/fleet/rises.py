"""The demand that is to be expected, from what arrived: pure statistics, in seats that calls keep taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

# Time constants of the demand that replicas are held against, and of a quicker look at it. In a steady rise the two are
# as far apart as demand rises in the difference.
SMOOTH_SECONDS, QUICK_SECONDS = 60.0, 20.0
# A rise is believed beyond so many standard deviations of a Poisson process: three would see one in chance some times a
# day. It is expected to go on for this share of a start, as it may end before, and to come to a quarter at least.
_RISE_SIGMAS, _RISE_SHARE, _LEAST_RISE = 4.0, 0.5, 1.25
_BEFORE_MINUTES = 4  # among which there is one before the rise
# A leap within the seconds over which arrivals are counted, as the platform does, is believed beyond so many.
_LEAP_SIGMAS, _ARRIVAL_SECONDS = 4.0, 10.0
# Growth is looked for over this many minutes, and believed beyond so many standard deviations.
_TREND_MINUTES, _TREND_SIGMAS = 5, 2.0
# Demand changes by chance within five minutes by what it did in the last hour, and by the root of the time in others.
# Until there are so many minutes, and at most, a step down asks for 0.6 where the ceiling is 0.7.
_CHANGE_MINUTES, _LEARNED_MINUTES = 5, 20
_LEAST_MARGIN, _MOST_MARGIN = 0.04, 1 / 6
# A pool bears three deviations of the change within a start. A smaller one must be left with as much after ten minutes,
# in which demand changed by one and a half on top of their highest.
_START_SIGMAS, _CALM_SIGMAS = 3.0, 1.5


def faded(passed: float, seconds: float) -> float:
    """Return the share of a faded mean that a new figure has after `passed` seconds; the first has all of it."""
    return 1.0 - math.exp(-max(0.0, passed) / seconds)


def risen(quick: float, smooth: float, demands: Sequence[float], *, service_s: float, ready_seconds: float) -> float:
    """Return what a rise under way will have come to, 0 where chance explains it.

    quick, smooth: demand faded over QUICK_SECONDS and SMOOTH_SECONDS; demands: of each minute, newest last
    """
    apart = quick - smooth
    # The variance of the difference between two faded means of the same arrivals.
    noise = quick * service_s * (SMOOTH_SECONDS - QUICK_SECONDS) ** 2
    noise /= 2 * SMOOTH_SECONDS * QUICK_SECONDS * (SMOOTH_SECONDS + QUICK_SECONDS)
    if apart <= _RISE_SIGMAS * math.sqrt(max(0.0, noise)):
        return 0.0
    ahead = QUICK_SECONDS + _RISE_SHARE * ready_seconds
    before = min(demands[-_BEFORE_MINUTES:], default=smooth)
    return max(_LEAST_RISE * before, quick + apart * ahead / (SMOOTH_SECONDS - QUICK_SECONDS))


def leapt(work: float, quick: float, *, service_s: float) -> float:
    """Return the demand of the last seconds, 0 where it is above the quick look by no more than chance explains."""
    noise = math.sqrt(work * service_s / _ARRIVAL_SECONDS)
    return work if work - quick > _LEAP_SIGMAS * noise else 0.0


def grown(demands: Sequence[float], *, service_s: float, seconds: float) -> float:
    """Return by what the trend of the last minutes will have raised the demand in so many seconds.

    demands: of each minute, newest last
    """
    if len(demands) <= _TREND_MINUTES or not service_s:
        return 0.0
    before, now = demands[-1 - _TREND_MINUTES], demands[-1]
    # The mean of a minute of calls that each hold a seat for `service_s` scatters by so much.
    noise = math.sqrt(2 * max(now, before) * service_s / 60.0)
    if now - before <= _TREND_SIGMAS * noise:
        return 0.0
    return (now - before) / (60.0 * _TREND_MINUTES) * seconds


def usual_change(demands: Sequence[float]) -> float | None:
    """Return the share by which demand usually changes in five minutes, None while too little is known.

    It is the standard deviation of the changes, without trend and bursts.
    """
    if len(demands) < _LEARNED_MINUTES:
        return None
    pairs = zip(demands, demands[_CHANGE_MINUTES:], strict=False)
    changes = [(after - before) / before for before, after in pairs if before > 0]
    if not changes:
        return 0.0
    trend = median(changes)
    # The deviation of a normal distribution, by the median: a burst or two do not count.
    return 1.4826 * median(abs(change - trend) for change in changes)


def headroom(change: float | None, ready_seconds: float) -> float:
    """Return the share of the demand that a pool bears besides, for what changes while a replica starts."""
    return 0.0 if change is None else min(_MOST_MARGIN, _START_SIGMAS * _change_in(change, ready_seconds))


def margin(change: float | None, *, seconds: float, ready_seconds: float) -> float:
    """Return the share of the demand that a pool must bear besides, before it is made smaller.

    seconds: for which the smaller pool should do; after them it must still have its headroom
    """
    if change is None:
        return _MOST_MARGIN
    besides = _CALM_SIGMAS * _change_in(change, seconds) + headroom(change, ready_seconds)
    return max(_LEAST_MARGIN, min(_MOST_MARGIN, besides))


def _change_in(change: float, seconds: float) -> float:
    return change * math.sqrt(seconds / (60.0 * _CHANGE_MINUTES))
