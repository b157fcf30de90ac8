"""A canary adapter's whole life on a real replica: its weights are in memory while it is resident, and nowhere else."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from marketplace.catalog.models import Version
from marketplace.vault import replica_client, tasks
from tests.marketplace.vault.factories import Sold
from tests.tiers import SERVICES
from tests.together.canary import Canary, files_under, memory_of
from tests.together.replica_process import ReplicaProcess, sell
from tests.together.test_with_platform import administer, completion
from tests.together.tiny import Tiny
from tests.warm import REPOSITORY, warm

pytestmark = [pytest.mark.deep, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]


@pytest.fixture
def core_files() -> Iterator[None]:
    """Let children write core files, as far as this account may."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.fixture
def replica(
    platform_url: str,
    tiny: Tiny,
    tmp_path: Path,
    core_files: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ReplicaProcess]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    started = ReplicaProcess(platform_url, tiny.model, tmp_path / "state", dtype="bfloat16", warm=False)
    with started.running() as process:
        yield process


def plant(tiny: Tiny, tmp_path: Path, name: str, seed: int) -> tuple[Canary, Sold]:
    """Make an adapter, remember its needles, seal and upload it, and forget its files, as a creator's machine may."""
    creator = tmp_path / "creator"
    needles = json.loads(warm().run("tests.together.maker", "canary", tiny.model, creator / name, seed))
    canary = Canary({where: bytes.fromhex(needle) for where, needle in needles.items()})
    sold = sell(tiny, name, tmp_path, state="verifying", folder=creator / name)
    shutil.rmtree(creator)
    return canary, sold


def serve(replica: ReplicaProcess, sold: Sold) -> None:
    """Verify, publish and call an adapter: it is resident afterwards."""
    verdict = replica_client.verify(sold.version)
    assert verdict.ok, verdict
    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.PUBLISHED)
    answer = completion(replica, sold.digest).send()
    assert answer.status_code == 200, answer.text
    assert administer(replica, "stats", {}).json()["resident"] == [sold.digest]


def in_memory(replica: ReplicaProcess, canary: Canary) -> set[str] | None:
    """The needles in the replica's memory; None where the system keeps it even from its own account, as it should."""
    assert replica.process is not None
    found: set[str] = set()
    try:
        for piece in memory_of(replica.process.pid):
            found |= canary.found_in(piece)
    except PermissionError:
        assert os.geteuid() != 0 or not _may_trace()
        return None
    return found


def _may_trace() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    return bool(effective >> 19 & 1)


def elsewhere(canaries: list[Canary], folders: list[Path], since: float) -> list[tuple[str, set[str]]]:
    """The files, and the tables of the database, that hold any needle."""
    hits = []
    for path in files_under(folders, since):
        try:
            data = path.read_bytes()
        except OSError:  # removed meanwhile
            continue
        hits += [(str(path), found) for canary in canaries if (found := canary.found_in(data))]
    for name, rows in tables():
        hits += [(name, found) for canary in canaries if (found := canary.found_in(rows))]
    return hits


def administrator() -> psycopg.Connection[Any]:
    """Log in as the administrator to this test's own database: the platform's role may not see every table."""
    url = urlsplit(os.environ["DATABASE_ADMIN_URL"])
    return psycopg.connect(url._replace(path=f"/{connection.settings_dict['NAME']}").geturl(), autocommit=True)


def tables() -> Iterator[tuple[str, bytes]]:
    """Each table of the database as the rows' own bytes."""
    with administrator() as session:
        listed = session.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
        for (name,) in listed:
            whole = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT binary)").format(sql.Identifier(name))
            with session.cursor() as cursor, cursor.copy(whole) as rows:
                yield name, b"".join(bytes(row) for row in rows)


def data_folder() -> Path:
    """Return the folder of the database server's files."""
    with administrator() as session:
        row = session.execute("SHOW data_directory").fetchone()
    assert row is not None
    return Path(row[0])


def test_a_canary_is_in_memory_while_it_is_resident_and_nowhere_else_even_after_a_crash(
    replica: ReplicaProcess, tiny: Tiny, tmp_path: Path
) -> None:
    began = time.time() - 2
    cores_before = set(REPOSITORY.glob("core*"))
    revoked, first = plant(tiny, tmp_path, "revoked", 101)
    crashed, second = plant(tiny, tmp_path, "crashed", 102)

    serve(replica, first)
    seen = in_memory(replica, revoked)
    # The pool's own encoding: the file's bytes are not there although the weights are.
    assert seen is None or seen == revoked.of("pool, bfloat16"), seen
    Version.objects.filter(pk=first.version.pk).update(state=Version.State.REVOKED)
    assert tasks.push_revocation(str(first.version.pk)) == 1
    assert in_memory(replica, revoked) in (None, set())

    serve(replica, second)
    assert in_memory(replica, crashed) in (None, crashed.of("pool, bfloat16"))
    assert replica.process is not None
    limits = Path(f"/proc/{replica.process.pid}/limits").read_text()
    assert next(line.split()[4:6] for line in limits.splitlines() if line.startswith("Max core")) == ["0", "0"]
    assert replica.kill(signal.SIGSEGV) == -signal.SIGSEGV
    assert set(REPOSITORY.glob("core*")) == cores_before

    folders = [tmp_path, Path(os.environ[SERVICES]), data_folder(), Path("/dev/shm")]
    assert elsewhere([revoked, crashed], folders, began) == []
    _the_search_finds_files_and_rows(crashed, second, tmp_path, began)


def _the_search_finds_files_and_rows(canary: Canary, sold: Sold, tmp_path: Path, began: float) -> None:
    names = {path.name for path in files_under([tmp_path / "state"], began)}
    assert sold.digest in names  # the sealed package was searched
    needle = canary.needles["pool, bfloat16, A"]
    (tmp_path / "state" / "spilled").write_bytes(bytes(1000) + needle + bytes(1000))
    spilled = [(str(tmp_path / "state" / "spilled"), {"pool, bfloat16, A"})]
    assert elsewhere([canary], [tmp_path / "state"], began) == spilled
    assert any(sold.digest.encode() in rows for _, rows in tables())
