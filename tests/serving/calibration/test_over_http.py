"""A real replica of a tiny model, measured from outside by `capacity`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from capacity.__main__ import main
from capacity.errors import PlanRefused
from capacity.profile import Profile, read_profile
from capacity.remote import Remote, RemoteCall
from serving.http.admission import Admission, IncomingRequest, InsecureAuthorizer
from serving.http.errors import ApiError
from tests.capacity.profiles import profile, workload
from tests.serving.http.server import serving
from tests.serving.tiny import ADAPTERS, Tiny

SMALL = {"max_num_seqs": 4, "adapter_slots": 4}


class Ticketed(InsecureAuthorizer):
    """Takes no call without its platform's ticket."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        raise ApiError(401, "no ticket", code="invalid_ticket")


def call(model: str, number: int, output: int = 5) -> RemoteCall:
    return RemoteCall(model, [20 + number % 200, *range(21, 40)], output)


async def test_a_replica_tells_its_sizes_and_every_token_is_timed(tiny: Tiny) -> None:
    def measure(url: str) -> None:
        with Remote(url) as remote:
            facts = remote.facts()
            assert facts.replica.max_num_seqs == 4 and facts.replica.slots == 4 and facts.resident == {}
            assert len(facts.model.fingerprint) == 64 and facts.model.layers == 3
            base, adapters = remote.models()
            assert base == "base" and set(adapters) >= set(ADAPTERS)
            names = ["base", "r4", "r20-patterns"]
            calls = [call(names[number % 3], number) for number in range(9)]
            closed = remote.closed(calls, 3)
            assert [len(one.tokens) for one in closed] == [5] * 9
            assert all(one.tokens == sorted(one.tokens) and one.tokens[0] > one.sent for one in closed)
            assert closed[1].sent >= closed[0].tokens[0], "clients start one after the other"
            assert sum(remote.facts().resident.values()) == 2
            begun = remote.closed(calls, 3, least=4, seconds=0.0)
            assert 4 <= len(begun) < 9
            opened = remote.open(calls[:3], [0.0, 0.05, 0.1])
            assert [round(one.sent, 2) >= at for one, at in zip(opened, (0.0, 0.05, 0.1), strict=True)] == [True] * 3
            assert all(one.tokens[0] > one.sent for one in opened)

    async with serving(tiny, **SMALL) as server:
        await asyncio.to_thread(measure, server.url)


async def test_a_calibration_ends_with_a_profile_or_says_that_the_machine_is_too_busy(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    flags = ["calibrate", "--out", str(file), "--seconds", "12", "--quiet"]
    async with serving(tiny, **SMALL) as server:
        code = await asyncio.to_thread(main, [*flags, "--url", server.url])
        await server.idle()
        server.engine.planner.check_integrity()
    said = capsys.readouterr()
    if code == 0:
        made: Profile = read_profile(file)
        assert made.over_http and made.quality.median <= 0.08 and made.load_seconds
        assert "measured over HTTP" in said.out
    else:
        assert code == 2 and not file.exists()
        assert "8 % are allowed" in said.err or "give it more time" in said.err


async def test_replicas_that_cannot_be_measured_are_refused_in_one_line(tiny: Tiny, tmp_path: Path) -> None:
    def refused(url: str, *flags: str) -> str:
        with pytest.raises(PlanRefused) as error, Remote(url) as remote:
            remote.facts()
            base, _ = remote.models(*flags)
            remote.closed([call(base, 1)], 1)
        return str(error.value)

    async with serving(tiny, **SMALL) as server:
        assert "'llama' is unknown at" in await asyncio.to_thread(refused, server.url, "llama")
        usual, file = tmp_path / "workload.json", tmp_path / "profile.json"
        usual.write_bytes(msgspec.json.encode(workload()))
        file.write_bytes(msgspec.json.encode(profile()))
        flags = ["check", "--profile", str(file), "--workload", str(usual), "--url", server.url]
        assert await asyncio.to_thread(main, [*flags, "--quiet"]) == 2  # another base than the profile's
    async with serving(tiny, authorizer=Ticketed, **SMALL) as server:
        assert "wants a token (HTTP 401)" in await asyncio.to_thread(refused, server.url)
    assert "no replica answers at" in await asyncio.to_thread(refused, server.url)


async def test_a_replica_that_stops_in_the_middle_ends_the_measurement(tiny: Tiny) -> None:
    def measure(url: str) -> None:
        with Remote(url) as remote:
            remote.closed([call("base", number, output=450) for number in range(64)], 4)

    async with serving(tiny, **SMALL) as server:
        measuring = asyncio.create_task(asyncio.to_thread(measure, server.url))
        while server.engine.stats.generated_tokens < 20:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.engine.stop)
        with pytest.raises(PlanRefused, match=r"in the middle of a cell|ended the answer|is full"):
            await measuring
