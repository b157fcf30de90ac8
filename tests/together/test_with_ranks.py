"""A replica of two processes on the platform: tickets, receipts and the kill switch are those of one process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marketplace.catalog.models import Version
from marketplace.vault import replica_client, tasks
from protocol.admin import JournalKey
from tests.together.canary import Canary, memory_of
from tests.together.replica_process import ReplicaProcess
from tests.together.test_canary import plant
from tests.together.test_with_platform import administer, completion, journal_of, receipt_of
from tests.together.tiny import PROMPT, Tiny

NOT_SECRET = ("CUDA_", "HOME", "LC_", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "TRITON_", "XDG_")
pytestmark = [pytest.mark.deep, pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]


@pytest.fixture
def replica(platform_url: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicaProcess]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    # Long enough that an end which comes sooner does not come of it.
    flags = ["--tensor-parallel", "2", "--tensor-parallel-timeout-s", "900"]
    with ReplicaProcess(platform_url, tiny.model, tmp_path / "state", flags=flags).running() as process:
        yield process


def test_a_sealed_adapter_is_served_billed_revoked_and_gone_from_both_processes(
    replica: ReplicaProcess, tiny: Tiny, tmp_path: Path
) -> None:
    assert replica.process is not None
    (child,) = children(replica.process.pid)
    canary, sold = plant(tiny, tmp_path, "canary", 101)
    verdict = replica_client.verify(sold.version)
    assert verdict.ok, verdict
    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.PUBLISHED)
    bare = completion(replica, None).send()
    assert bare.json()["choices"][0]["token_ids"] == tiny.reference(None, PROMPT, 8)
    ask = completion(replica, sold.digest)
    answer = ask.send()
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] != bare.json()["choices"][0]["token_ids"]
    receipt = receipt_of(ask, answer.json()["intarsia"]["receipt"])
    assert (receipt.prompt_tokens, receipt.completion_tokens, receipt.cached_tokens) == (6, 8, 0)
    assert (receipt.adapter, receipt.base) == (sold.digest, replica.row().base_fingerprint)

    for pid in (replica.process.pid, child):
        found = in_memory(pid, canary)
        assert found is None or "pool, float32, A" in found  # where outputs are cut, every rank has A
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert next(line.split()[4:6] for line in limits.splitlines() if line.startswith("Max core")) == ["0", "0"]
    assert not [name for name in environment(child) if not name.startswith(NOT_SECRET)]

    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.REVOKED)
    assert tasks.push_revocation(str(sold.version.pk)) == 1
    assert completion(replica, sold.digest).send().status_code == 403
    assert administer(replica, "stats", {}).json()["resident"] == []
    for pid in (replica.process.pid, child):
        assert in_memory(pid, canary) in (None, set())

    _a_killed_rank_ends_the_replica_and_its_journal_knows_what_was_served(replica, child, tmp_path)


def _a_killed_rank_ends_the_replica_and_its_journal_knows_what_was_served(
    replica: ReplicaProcess, child: int, tmp_path: Path
) -> None:
    assert replica.process is not None
    cut = completion(replica, None, tokens=190)
    cut.body["stream"] = True
    with cut.stream() as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(child, signal.SIGKILL)
        rest = "".join(lines)
    assert "engine_stopped" in rest or "internal_error" in rest
    assert replica.process.wait(200) == 1
    assert not Path(f"/proc/{child}").exists()
    assert not list((tmp_path / "temporary").glob("intarsia-ranks-*"))
    # The next start takes the journal over: what the cut answer had is known, once.
    replica.start()
    asked = [JournalKey(cut.claims["jti"], 1)]
    (state,) = journal_of(replica.row(), asked)
    assert state.state == "final" and state.receipt is not None
    assert 0 < receipt_of(cut, state.receipt).completion_tokens < 190
    (orphan,) = children(replica.process.pid)
    replica.kill(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{orphan}").exists() and _state(orphan) != "Z":  # init may be slow to take it
        assert time.monotonic() < deadline, "a rank outlived its replica"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """The ranks that this process has started."""
    listed = [Path(f"/proc/{pid}/task/{task.name}/children") for task in Path(f"/proc/{pid}/task").iterdir()]
    found = {int(number) for path in listed for number in path.read_text().split()}
    return [one for one in found if b"serving.parallel.rank" in Path(f"/proc/{one}/cmdline").read_bytes()]


def environment(pid: int) -> list[str]:
    """The names of a process's variables; none where the system does not tell them, as it should."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return []
    return [entry.split(b"=")[0].decode() for entry in data.split(b"\0") if entry]


def in_memory(pid: int, canary: Canary) -> set[str] | None:
    """The needles in a process's memory; None where the system keeps it even from its own account, as it should."""
    try:
        return {name for piece in memory_of(pid) for name in canary.found_in(piece)}
    except PermissionError:
        return None


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
