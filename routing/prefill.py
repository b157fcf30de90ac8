"""Whether a prompt is computed by a replica of its own before another one answers.

Both costs are in stream-seconds: seconds that one stream waits. A prompt that is computed where it is answered holds up
every stream there; one that is computed elsewhere makes its own stream wait, and holds the others up only while its KV
is copied in.
"""

from __future__ import annotations

from dataclasses import dataclass

# Shorter prompts are computed sooner than asked for.
LEAST_TOKENS = 256
# Bytes per second at which blocks are copied into a pool, and of a pull, until pulls are measured.
_COPY_RATE, _PULL_RATE = 4e9, 5e8
# Seconds of a pull without its bytes: a connection, a look into the pool, a step or two.
_PULL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Apart:
    """What is known of a prompt and the two replicas.

    tokens: of the prompt, without those that are cached
    prefill_s: seconds that they take where they are computed alone
    kv_bytes: of their KV
    streams: those that the answering replica runs
    wait_s, wait_there_s: seconds until the prompt starts, there and at the replica of its own
    pull_rate: bytes per second of the latest pulls; 0: none was measured
    """

    tokens: int
    prefill_s: float
    kv_bytes: int
    streams: int
    wait_s: float
    wait_there_s: float
    pull_rate: float = 0.0

    @property
    def together_s(self) -> float:
        """Return what computing the prompt costs where it is answered."""
        return self.prefill_s * self.streams + self.wait_s

    @property
    def apart_s(self) -> float:
        """Return what computing it elsewhere costs: its transfer, and the interference with the streams here."""
        transfer = _PULL_SECONDS + self.kv_bytes / (self.pull_rate or _PULL_RATE)
        return transfer + self.kv_bytes / _COPY_RATE * self.streams + self.wait_there_s


def goes_apart(known: Apart) -> bool:
    """Return whether the prompt is to be computed by a replica of its own: not where no stream would be held up."""
    return known.tokens >= LEAST_TOKENS and known.streams > 0 and known.together_s > known.apart_s
