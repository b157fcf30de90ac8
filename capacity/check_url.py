"""The cells of a check on a replica that runs, over HTTP."""

from __future__ import annotations

import random
from collections.abc import Sequence

from capacity.cells import measured, prompt_tokens
from capacity.check import Asked, Ran
from capacity.closed_loop import figures_of, run_closed
from capacity.errors import PlanRefused
from capacity.fit_cells import Cell, workload_of
from capacity.profile import Profile
from capacity.remote import PROMPTS, Remote, RemoteCall
from capacity.runs import RunResult
from capacity.simulate import WARM_SHARE, Scene
from capacity.workload import Arrival

_REFERENCE = Cell(1, 16, 16)
_WARM = Arrival(0.0, "standard", 16, 0, 1, None)


class RemoteEngine:
    """A running replica. base: its base's name there; None: the first that it lists

    Raises PlanRefused where none runs at the address, or it serves another model than the profile's.
    """

    # The replica does not tell which call waited for its adapter.
    unseen = frozenset({"hit"})

    def __init__(self, url: str, base: str | None, profile: Profile) -> None:
        with Remote(url) as remote:
            facts = remote.facts()
            self._base, self._names = remote.models(base)
        self._url = url
        self._number = random.SystemRandom().randrange(PROMPTS)
        if facts.model.fingerprint != profile.model.fingerprint:
            raise PlanRefused(
                8, f"{url} serves {facts.model.fingerprint[:12]}, the profile is of {profile.model.fingerprint[:12]}"
            )
        if facts.replica != profile.replica:
            raise PlanRefused(8, f"{url} has other limits than the profile's replica: calibrate it anew")

    @property
    def most_adapters(self) -> int:
        """Return how many adapters the replica lists."""
        return len(self._names)

    def run(self, profile: Profile, asked: Sequence[Asked], *, seconds: float) -> Ran:
        """Run cells one after the other. Raises PlanRefused."""
        ran = Ran([], [])
        with Remote(self._url) as remote:
            for one in asked:
                ran.beside.append(self._longer(remote, profile))
                ran.results.append(self._cell(remote, one, profile.replica.slots))
            ran.beside.append(self._longer(remote, profile))
        return ran

    def _longer(self, remote: Remote, profile: Profile) -> float:
        """Return how many times as long as the profile says one client waits from token to token."""
        arrivals = _REFERENCE.arrivals(_REFERENCE.least)
        scene = Scene(profile, workload_of(0, {"16": 1.0}), noise=False)
        said = run_closed(scene, arrivals, 1, profile.http_seconds).calls
        calls = remote.closed([self._call(one, self._base) for one in arrivals], 1)
        seen, expected = (figures_of(calls, 1)["middle"].value for calls in (calls, said))
        return seen / expected

    def _cell(self, remote: Remote, asked: Asked, slots: int) -> RunResult:
        warm = range(min(slots, asked.scene.workload.adapters))
        remote.closed([self._call(_WARM, self._base)] + [self._call(_WARM, self._names[one]) for one in warm], 1)
        calls = [
            self._call(one, self._base if one.adapter is None else self._names[one.adapter]) for one in asked.arrivals
        ]
        timed = remote.open(calls, [one.at for one in asked.arrivals])
        told = [{"tokens": call.tokens, "cold": False} for call in timed]
        return measured(told, asked.arrivals, WARM_SHARE)

    def _call(self, arrival: Arrival, model: str) -> RemoteCall:
        self._number += 1
        return RemoteCall(model, prompt_tokens(arrival, self._number), arrival.output, arrival.latency_class)
