"""A day of demand for one pool: it rises and falls, wavers, bursts, and for an hour loves one adapter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.fleet.simulation import Asked, Scene
from routing import key_of

Floats = npt.NDArray[np.float64]
# Fibonacci hashing spreads numbers over 64 bits.
_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


@dataclass(frozen=True)
class Day:
    """Times in seconds, rates in calls per second.

    mean: of the rate; swing: the share by which noon is above it and midnight below; waver: the standard deviation of
    what comes and goes within ten minutes
    bursts: how many; each lasts 4 to 15 minutes, multiplies the rate by up to `burst_most`, and takes `onset` to come
    hot: the share of calls to one adapter within the hour that begins at hot_at
    lost: replicas that vanish
    ready: until a replica that was ordered takes calls, times 0.8 to 1.3; noticed: until a lost one is replaced
    target: seconds within which 99 % of first tokens should come
    """

    scene: Scene = field(default_factory=lambda: Scene(seats=16, service=4.0, adapters=2_000))
    seconds: int = 86_400
    mean: float = 36.0
    swing: float = 0.5
    waver: float = 0.03
    bursts: int = 5
    burst_most: float = 1.6
    onset: tuple[float, float] = (60.0, 240.0)
    hot: float = 0.3
    hot_at: float = 36_000.0
    lost: int = 6
    ready: float = 60.0
    noticed: float = 5.0
    target: float = 2.0
    seed: int = 1

    def rates(self) -> Floats:
        """Return the rate of each second."""
        numbers = np.random.default_rng(self.seed)
        seconds = np.arange(self.seconds)
        rate = self.mean * (1.0 - self.swing * np.cos(2 * math.pi * seconds / 86_400))
        return rate * self._waver(numbers) * self._bursts(numbers, seconds)

    def _waver(self, numbers: np.random.Generator) -> Floats:
        knots = numbers.normal(1.0, self.waver, self.seconds // 300 + 2)
        return np.interp(np.arange(self.seconds) / 300, np.arange(len(knots)), knots)

    def bursting(self) -> npt.NDArray[np.bool_]:
        """Return for each second whether a burst is under way."""
        numbers = np.random.default_rng(self.seed)
        self._waver(numbers)
        return self._bursts(numbers, np.arange(self.seconds)) > 1.0

    def _bursts(self, numbers: np.random.Generator, seconds: npt.NDArray[np.int64]) -> Floats:
        factor = np.ones(self.seconds)
        for _ in range(self.bursts):
            begins, lasts = numbers.uniform(0, self.seconds), numbers.uniform(240, 900)
            onset, height = numbers.uniform(*self.onset), numbers.uniform(1.2, self.burst_most)
            up = np.clip((seconds - begins) / onset, 0, 1)
            down = np.clip((begins + lasts - seconds) / onset, 0, 1)
            factor = np.maximum(factor, 1 + (height - 1) * np.minimum(up, down))
        return factor

    def calls(self, rates: Floats) -> Iterator[tuple[int, list[tuple[Asked, float]]]]:
        """Yield for each second its calls in order, each with the seconds that it holds a seat."""
        numbers = np.random.default_rng(self.seed + 1_000)
        share = 1.0 / np.arange(1, self.scene.adapters + 1) ** self.scene.zipf
        cumulated = np.cumsum(share / share.sum())
        keys = [key_of(f"adapter-{number}") for number in range(self.scene.adapters)]
        conversations, ids = [key_of(str(number)) for number in range(4_096)], 0
        spread = math.sqrt(math.log(1 + 0.5**2))  # a log-normal length whose deviation is half its mean
        for second, rate in enumerate(rates):
            count = int(numbers.poisson(rate))
            moments = np.sort(numbers.random(count)) + second
            chosen = np.searchsorted(cumulated, numbers.random(count)).clip(max=self.scene.adapters - 1)
            if self.hot_at <= second < self.hot_at + 3_600:
                chosen[numbers.random(count) < self.hot] = 0
            held = self.scene.service * numbers.lognormal(-(spread**2) / 2, spread, count)
            goes_on = numbers.random(count) < self.scene.goes_on
            some: list[tuple[Asked, float]] = []
            for at, adapter, seconds, on in zip(
                moments.tolist(), chosen.tolist(), held.tolist(), goes_on.tolist(), strict=True
            ):
                ids += 1
                # A conversation goes on with one of the last of its adapter: few of them, by a hash of both.
                talk = conversations[(adapter * 31 + ids % 16) % 4_096] if on else (ids * _GOLDEN) & _MASK
                some.append((Asked(keys[adapter], talk, at, measured=True), seconds))
            yield second, some
