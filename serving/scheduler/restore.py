"""One restore of spilled KV, and whether it is worth waiting for."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving.core import Sequence

# A restore that is slower than computing spares others that work: taken where it uses at most this share of the slack,
# and at most so many times the seconds of computing.
_SLACK_SHARE, _MOST_TIMES = 0.5, 4.0


@dataclass(slots=True)
class RestoreCounts:
    """Since start: restores that were begun, that ended with all their blocks, and that were given up."""

    begun: int = 0
    done: int = 0
    given_up: int = 0


@dataclass(slots=True, eq=False)
class Restore:
    """The restore of one waiting sequence.

    keys: of the prefix that is to be in the pool when the sequence starts
    patience: seconds that the sequence waits for it once its turn has come
    held: blocks of the pool, for the first of `keys`
    turn_at: when its turn came
    """

    sequence: Sequence
    keys: list[bytes]
    patience: float
    held: list[int] = field(default_factory=list)
    turn_at: float | None = None
    ended: bool = False


def patience_for(turn: float, restore: float, recompute: float, slack: float) -> float | None:
    """Return how many seconds to wait for a restore once a sequence's turn has come; None: compute instead.

    turn: seconds until its turn; restore, recompute: seconds that either takes; slack: seconds that would be left until
    its first token is due if both took none
    """
    if max(turn, restore) <= turn + recompute:
        return recompute
    spare = min(slack * _SLACK_SHARE, recompute * _MOST_TIMES)
    return spare if restore <= spare else None
