"""The time from a pool's first late moment to the decision that orders replicas because of it."""

from __future__ import annotations

from dataclasses import dataclass, field

# Moments of lateness that are no further apart belong to one breach.
_APART = 10.0


@dataclass
class Lateness:
    """Breaches of the promise, looked at once a second, whatever the policy sees.

    A breach asks for an order from its first look at which what was ordered before, and is on its way, does not bear
    the demand of that moment by the table of ceilings. The first order of the breach is the answer.

    delays: from that look to the answer; to the end of the breach, if it had none
    ahead: breaches for which enough was on its way all the time
    """

    delays: list[float] = field(default_factory=list)
    ahead: int = 0
    _last: float | None = None  # late look of the breach under way
    _since: float | None = None
    _delay: float | None = None

    def look(self, now: float, *, late: bool, coming: bool) -> None:
        """Note one look. coming: replicas are on their way, and are enough for the demand of this moment."""
        if late:
            self._last = now
            if self._since is None and not coming:
                self._since = now
        elif self._last is not None and now - self._last > _APART:
            self.close()

    def ordered(self, now: float) -> None:
        """Note that replicas were ordered."""
        if self._since is not None and self._delay is None:
            self._delay = now - self._since

    def close(self) -> None:
        """End the breach that is under way, if there is one."""
        if self._last is None:
            return
        if self._since is None:
            self.ahead += 1
        else:
            self.delays.append(self._last - self._since if self._delay is None else self._delay)
        self._last = self._since = self._delay = None
