"""A calibration from outside, on a replica whose steps are known: its answers are simulated, and take no time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from capacity import calibrate_url as module
from capacity.__main__ import main
from capacity.calibrate import step
from capacity.cells import predict
from capacity.check import check
from capacity.check_url import RemoteEngine
from capacity.closed_loop import run_closed
from capacity.errors import PlanRefused
from capacity.fit_cells import workload_of
from capacity.kinds import OVER_HTTP
from capacity.profile import Profile, read_profile, warnings_of
from capacity.remote import Facts, Remote, RemoteCall
from capacity.runs import TimedCall
from capacity.simulate import Scene, replay
from capacity.workload import Arrival, draw
from tests.capacity.profiles import profile, replica, workload
from tests.capacity.test_fit_cells import TRUE

WAY, LOAD = 2e-3, 0.05
NAMES = tuple(f"adapter-{number}" for number in range(6))


class SimulatedRemote(Remote):
    """A replica in simulated time. noise: how far a cell's times are off, all together, as a share"""

    noise = 0.0
    loaded: tuple[str, ...] = ()
    names = NAMES

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.resident = set(self.loaded)
        self.chance = np.random.default_rng(4)
        self.made = profile(
            replica=replica(max_num_seqs=4),
            coefficients=dict(TRUE.coefficients),
            http_seconds=WAY,
            load_seconds=(LOAD,),
        )

    def facts(self) -> Facts:
        return Facts(self.made.machine, self.made.model, self.made.replica, {"16": len(self.resident)})

    def models(self, base: str | None = None) -> tuple[str, tuple[str, ...]]:
        return "base", self.names

    def closed(
        self, calls: Sequence[RemoteCall], clients: int, *, least: int = 0, seconds: float = float("inf")
    ) -> list[TimedCall]:
        arrivals = self._arrivals(calls, [0.0] * len(calls))
        scene = Scene(self.made, workload_of(len(self.names), {"16": 1.0}), noise=False)
        found = run_closed(scene, arrivals[: least or None], clients, WAY).calls
        cold = {call.model for call in calls if call.model != "base"} - self.resident
        self.resident |= cold
        factor = float(np.exp(self.chance.normal(0, self.noise))) if self.noise else 1.0
        late = LOAD if cold and len(calls) == 1 else 0.0
        return [TimedCall(factor * one.sent, [factor * at + late for at in one.tokens]) for one in found]

    def open(self, calls: Sequence[RemoteCall], at: Sequence[float]) -> list[TimedCall]:
        scene = Scene(self.made, workload_of(len(self.names), {"16": 1.0}))
        done = replay(scene, self._arrivals(calls, at), 9, warm_share=0.0).calls
        return [TimedCall(one.arrival.at, np.cumsum([one.arrival.at + one.ttft, *one.gaps]).tolist()) for one in done]

    def _arrivals(self, calls: Sequence[RemoteCall], at: Sequence[float]) -> list[Arrival]:
        return [
            Arrival(
                moment,
                call.latency_class,
                len(call.prompt),
                0,
                call.output,
                None if call.model == "base" else self.names.index(call.model),
            )
            for call, moment in zip(calls, at, strict=True)
        ]


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> type[SimulatedRemote]:
    class Fresh(SimulatedRemote): ...

    monkeypatch.setattr(module, "Remote", Fresh)
    monkeypatch.setattr("capacity.check_url.Remote", Fresh)
    return Fresh


@pytest.fixture(scope="module")
def made() -> Profile:
    patch = pytest.MonkeyPatch()
    with patch.context() as within:
        within.setattr(module, "Remote", SimulatedRemote)
        return module.calibrate_url("http://replica", seconds=30)


def test_a_profile_from_outside_says_so_everywhere_and_its_intervals_are_wider(made: Profile) -> None:
    assert made.source == "measured over HTTP" and made.probe_read == 0
    assert made.quality.median < 0.05 <= made.error
    assert made.http_seconds == pytest.approx(WAY, rel=0.6)
    assert made.load_seconds == pytest.approx((LOAD,) * 6, rel=0.1)
    assert "measured over HTTP" in " ".join(warnings_of(made)) and "streamed tokens" in step(made).result
    inside = msgspec.structs.replace(made, source="measured", probe_read=1.0, probe_gemm=1.0)
    arrivals = draw(workload(), 5.0, 60, 1)
    wide, narrow = (predict(Scene(one, workload()), arrivals).intervals["ttft_mean"] for one in (made, inside))
    assert wide.high - wide.low > narrow.high - narrow.low
    assert OVER_HTTP > 1.1


def test_a_check_over_http_leaves_out_what_it_cannot_see(made: Profile, remote: type[SimulatedRemote]) -> None:
    standard = msgspec.structs.replace(
        workload(),
        promises={"standard": workload().promises["interactive"]},
        samples=tuple(msgspec.structs.replace(one, latency_class="standard", cached=0) for one in workload().samples),
    )
    result = check(made, standard, RemoteEngine("http://replica", None, made), count=2, seconds=5)
    assert result.fine and all("hit" not in cell.covered() for cell in result.cells)
    assert max(cell.adapters for cell in result.cells) == len(NAMES)
    slow = msgspec.structs.replace(made, coefficients={name: 2 * one for name, one in made.coefficients.items()})
    assert not check(slow, standard, RemoteEngine("http://replica", None, slow), count=2, seconds=5).fine


def test_a_replica_that_others_use_is_refused(remote: type[SimulatedRemote]) -> None:
    remote.noise = 0.5
    with pytest.raises(PlanRefused, match="8 % are allowed"):
        module.calibrate_url("http://replica", seconds=30)


def test_loads_that_cannot_be_timed_are_refused_and_a_replica_without_adapters_is_not(
    remote: type[SimulatedRemote], tmp_path: Path
) -> None:
    remote.loaded = NAMES
    with pytest.raises(PlanRefused, match="resident already"):
        module.calibrate_url("http://replica", seconds=30)
    remote.names = remote.loaded = ()
    file = tmp_path / "profile.json"
    assert main(["calibrate", "--url", "http://replica", "--out", str(file), "--seconds", "30", "--quiet"]) == 0
    bare = read_profile(file)
    assert bare.load_seconds == ()
    with pytest.raises(PlanRefused, match="no load of an adapter"):
        replay(Scene(bare, workload()), draw(workload(), 1.0, 5, 1), 1)


def test_another_model_or_other_limits_are_refused_before_anything_runs(
    made: Profile, remote: type[SimulatedRemote]
) -> None:
    other = msgspec.structs.replace(made, model=msgspec.structs.replace(made.model, fingerprint="0" * 64))
    with pytest.raises(PlanRefused, match="the profile is of 0000"):
        RemoteEngine("http://replica", None, other)
    with pytest.raises(PlanRefused, match="other limits"):
        RemoteEngine("http://replica", None, msgspec.structs.replace(made, replica=replica(blocks=9)))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--url", "127.0.0.1:1"], "an address such as"),
        (["--url", "http://127.0.0.1:9"], "no replica answers"),
        (["--url", "http://127.0.0.1:9", "--threads", "2"], "go with --model"),
        (["--model", ".", "--base", "base"], "goes with --url"),
    ],
)
def test_flags_and_addresses_that_cannot_be_are_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *flags, "--quiet"]) == 2
    assert said in capsys.readouterr().err
