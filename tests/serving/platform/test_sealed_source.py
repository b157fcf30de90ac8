"""Sealed adapters on their way into memory: leases, downloads that break, wiping."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lora_kernels import AdapterPool, PoolSpec, SiteSpec
from protocol.leases import PackageIdentity
from sealed_weights import SealedPackage, SealError
from serving.adapters.manager import AdapterManager
from serving.errors import AdapterRevoked, AdapterUnavailable
from serving.platform import sealed
from serving.platform.downloads import Downloads
from serving.platform.errors import LeaseRefused, PlatformError, VaultUnreachable
from serving.platform.leases import LeaseTable
from serving.platform.link import HeldKey
from serving.platform.packages import PackageStore
from serving.platform.sealed import SealedAdapterSource
from serving.platform.vault_client import VaultClient
from tests.sealed_weights.factories import (
    BASE,
    BASE_FINGERPRINT,
    CREATOR_ID,
    DEK,
    IDENTITY,
    MODEL_ID,
    seal,
    write_adapter,
)


class Link:
    """Hands out one key, as the platform would; `refuse` is raised instead if set."""

    def __init__(self, package: SealedPackage) -> None:
        self.leases = LeaseTable()
        self.package, self.refuse = package, None
        self.asked: list[tuple[str, str]] = []
        self.handed_out: list[HeldKey] = []
        self.identity = PackageIdentity(CREATOR_ID, MODEL_ID, 1, BASE_FINGERPRINT.hex())

    def request_key(self, digest: str, purpose: str) -> HeldKey:
        self.asked.append((digest, purpose))
        if self.refuse is not None:
            raise self.refuse
        key = HeldKey(
            release_id=f"release-{len(self.asked)}",
            digest=digest,
            dek=bytearray(DEK),
            creator_public_key=IDENTITY.public_bytes(),
            identity=self.identity,
            package_size=self.package.size,
        )
        self.leases.grant(key.release_id, digest, asked_at=self.leases.now())
        self.handed_out.append(key)
        return key


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class PackageServer(http.server.BaseHTTPRequestHandler):
    """Serves one package as the platform does, by URLs of its own; the first answers break off after a few bytes."""

    content = b""
    breaks: list[int] = []  # noqa: RUF012
    ranges: list[str] = []  # noqa: RUF012

    def do_POST(self) -> None:
        assert self.headers["Authorization"] == "Bearer session"
        digest = self.path.split("/")[-2]
        content = json.dumps({"url": f"packages/{digest}?grant=1", "seconds": 60}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        assert self.path.endswith("?grant=1") and "Authorization" not in self.headers
        asked = self.headers["Range"]
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        rest = self.content[start:]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/*")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: self.breaks.pop(0)] if self.breaks else rest)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def package(tmp_path: Path) -> SealedPackage:
    return seal(write_adapter(tmp_path / "adapter"), tmp_path / "package")


@pytest.fixture
def server(package: SealedPackage) -> Iterator[type[PackageServer]]:
    handler = type("Handler", (PackageServer,), {"content": package.path.read_bytes(), "breaks": [], "ranges": []})
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.url = f"http://127.0.0.1:{listening.server_port}"  # type: ignore[attr-defined]
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield handler
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def store(server: Any, tmp_path: Path) -> PackageStore:
    return store_at(server, tmp_path / "packages")


def store_at(server: Any, folder: Path) -> PackageStore:
    client = VaultClient(server.url)
    client.session_token = "session"
    return PackageStore(folder, Downloads(client))


def source_of(link: Link, store: PackageStore) -> SealedAdapterSource:
    return SealedAdapterSource(link, store, BASE)  # type: ignore[arg-type]


def test_a_loaded_adapter_is_wiped_once_copied_and_its_lease_goes_back_once_released(
    package: SealedPackage, store: PackageStore
) -> None:
    link = Link(package)
    source = source_of(link, store)
    tensors = source.load(package.digest)
    assert link.asked == [(package.digest, "serve")]
    pair = next(iter(tensors.values()))
    assert pair.a.abs().sum() > 0
    assert link.handed_out[0].dek == bytearray(32)  # the key is gone as soon as the package is open
    source.copied(package.digest)
    assert pair.a.abs().sum() == 0
    assert link.leases.is_live(package.digest)
    source.release(package.digest)
    assert link.leases.held() == []


def test_a_candidates_key_is_used_without_a_second_lease_and_left_to_its_owner(
    package: SealedPackage, store: PackageStore
) -> None:
    link = Link(package)
    source = source_of(link, store)
    key = link.request_key(package.digest, "verify")
    source.offer_candidate(key)
    source.load(package.digest)
    assert link.asked == [(package.digest, "verify")] and key.dek == bytearray(DEK)
    source.withdraw_candidate(package.digest)
    source.load(package.digest)
    assert link.asked[-1] == (package.digest, "serve")


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (LeaseRefused("adapter_revoked", "withdrawn"), AdapterRevoked),
        (LeaseRefused("release_denied", "not published"), AdapterUnavailable),
        (VaultUnreachable("no answer"), AdapterUnavailable),
    ],
)
def test_without_a_lease_nothing_is_fetched_or_opened(
    package: SealedPackage, store: PackageStore, server: Any, refusal: PlatformError, error: type[Exception]
) -> None:
    link = Link(package)
    link.refuse = refusal  # type: ignore[assignment]
    with pytest.raises(error):
        source_of(link, store).load(package.digest)
    assert server.ranges == []
    assert link.leases.is_revoked(package.digest) == (error is AdapterRevoked)


def test_a_download_that_breaks_off_goes_on_where_it_stopped(
    package: SealedPackage, store: PackageStore, server: Any
) -> None:
    server.breaks[:] = [1000, 500]
    path = store.fetch(package.digest, package.size)
    assert path.read_bytes() == package.path.read_bytes()
    assert server.ranges == ["bytes=0-", "bytes=1000-", "bytes=1500-"]
    store.fetch(package.digest, package.size)
    assert len(server.ranges) == 3


def test_a_download_resumes_after_a_restart(package: SealedPackage, server: Any, tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / f"{package.digest}.part").write_bytes(package.path.read_bytes()[:2000])
    store = store_at(server, folder)
    assert store.fetch(package.digest, package.size).read_bytes() == package.path.read_bytes()
    assert server.ranges == ["bytes=2000-"]


def test_a_package_that_does_not_open_is_fetched_anew_the_next_time(
    package: SealedPackage, store: PackageStore, server: Any
) -> None:
    good = server.content
    server.content = good[:-1] + bytes([good[-1] ^ 1])
    source = source_of(Link(package), store)
    with pytest.raises(AdapterUnavailable, match="refused"):
        source.load(package.digest)
    server.content = good
    source.load(package.digest)
    assert server.ranges == ["bytes=0-", "bytes=0-"]


def test_a_package_of_another_model_is_refused_though_it_opens(package: SealedPackage, store: PackageStore) -> None:
    link = Link(package)
    link.identity = PackageIdentity(CREATOR_ID, MODEL_ID, 2, BASE_FINGERPRINT.hex())
    with pytest.raises(AdapterUnavailable, match="version"):
        source_of(link, store).load(package.digest)


def test_a_replica_of_another_checkpoint_opens_the_package_for_the_reference_that_the_vault_names(
    package: SealedPackage, store: PackageStore
) -> None:
    elsewhere = dataclasses.replace(BASE, fingerprint=bytes(32))
    source = SealedAdapterSource(Link(package), store, elsewhere)  # type: ignore[arg-type]
    assert source.load(package.digest)
    link = Link(package)
    link.identity = PackageIdentity(CREATOR_ID, MODEL_ID, 1, "00" * 32)  # of that checkpoint, not of the reference
    with pytest.raises(AdapterUnavailable, match="base model"):
        SealedAdapterSource(link, store, elsewhere).load(package.digest)  # type: ignore[arg-type]


def test_the_least_recently_used_packages_make_room(package: SealedPackage, server: Any, tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    for number in (1, 2):
        path = folder / f"{number}{'0' * 63}"
        path.write_bytes(bytes(1000))
        os.utime(path, (number, number))
    client = VaultClient(server.url)
    client.session_token = "session"
    PackageStore(folder, Downloads(client), max_bytes=package.size + 1500).fetch(package.digest, package.size)
    assert sorted(path.name[:2] for path in folder.iterdir()) == sorted(["20", package.digest[:2]])


def test_a_platform_that_sends_too_much_is_stopped(package: SealedPackage, store: PackageStore, server: Any) -> None:
    server.content = server.content + b"more"
    with pytest.raises(PlatformError, match="more bytes"):
        store.fetch(package.digest, package.size)


def test_a_digest_that_is_a_path_is_refused(store: PackageStore, server: Any) -> None:
    with pytest.raises(ValueError, match="64 hex"):
        store.fetch("../../etc/passwd", 10)
    assert server.ranges == []


def managed(source: SealedAdapterSource, clock: Clock) -> AdapterManager:
    """Adapter memory over `source`, in a pool for the factories' base."""
    sites = (
        SiteSpec("qkv", 16, (16, 8, 8)),
        SiteSpec("o", 16, (16,)),
        SiteSpec("gate_up", 16, (24, 24)),
        SiteSpec("down", 24, (16,)),
    )
    pool = AdapterPool(PoolSpec(sites, BASE.num_layers), num_pages=2, num_slots=2)
    return AdapterManager(pool, source, idle_seconds=60, clock=clock)


def ready(manager: AdapterManager, digest: str) -> None:
    manager.want([digest])
    limit = time.monotonic() + 60
    while not manager.is_ready(digest):
        assert time.monotonic() < limit and manager.poll() == []
        time.sleep(0.001)


def test_the_lease_of_what_is_used_is_kept_and_that_of_what_lies_idle_goes_back(
    package: SealedPackage, store: PackageStore
) -> None:
    link, clock = Link(package), Clock()
    manager = managed(source_of(link, store), clock)
    ready(manager, package.digest)
    manager.pin(package.digest)
    clock.now += 120
    manager.poll()
    assert link.leases.is_live(package.digest)  # a sequence runs on it: heartbeats go on renewing the lease
    manager.unpin(package.digest)
    clock.now += 61
    manager.poll()
    assert link.leases.held() == [] and manager.states() == {}
    assert not any(manager.pool.site(s.name).a.any() for s in manager.pool.spec.sites)
    ready(manager, package.digest)
    assert [purpose for _, purpose in link.asked] == ["serve", "serve"]  # with a lease of its own
    manager.close()
    assert link.leases.held() == []


def test_a_lease_that_runs_out_kills_whatever_state_the_adapter_is_in(
    package: SealedPackage, store: PackageStore
) -> None:
    link = Link(package)
    manager = managed(source_of(link, store), Clock())
    link.leases.on_end = manager.revoke
    ready(manager, package.digest)
    link.leases.drop_all()
    assert manager.is_revoked(package.digest) and manager.states() == {} and link.leases.held() == []
    manager.readmit(package.digest)
    manager.want([package.digest])
    link.leases.revoke([package.digest])  # while it is loaded, at whatever point
    manager.want([])
    manager.close()
    assert manager.states() == {} and link.leases.held() == []
    assert not any(manager.pool.site(s.name).a.any() for s in manager.pool.spec.sites)


@pytest.fixture
def contracted(tmp_path: Path) -> SealedPackage:
    folder = write_adapter(tmp_path / "contracted")
    (folder / "contract.json").write_text('{"contract": 1, "instructions": "Be brief.", "max_tokens": 5}')
    return seal(folder, tmp_path / "contracted.sealed")


def test_a_contract_is_read_and_the_weights_loaded_on_one_lease(
    contracted: SealedPackage, server: Any, tmp_path: Path
) -> None:
    server.content = contracted.path.read_bytes()
    link = Link(contracted)
    source = source_of(link, store_at(server, tmp_path / "packages"))
    held = source.contract(contracted.digest)
    assert held is not None and held.contract.instructions == "Be brief."
    assert source.contract(contracted.digest) is held
    assert next(iter(source.load(contracted.digest).values())).a.abs().sum() > 0
    assert link.asked == [(contracted.digest, "serve")]
    source.release(contracted.digest)
    assert source.contracts.find(contracted.digest) == (False, None) and link.leases.held() == []


def test_an_adapter_without_a_contract_is_known_to_have_none(package: SealedPackage, store: PackageStore) -> None:
    source = source_of(Link(package), store)
    source.load(package.digest)
    assert source.contracts.find(package.digest) == (True, None)
    assert source.contract(package.digest) is None


def test_a_package_opened_for_its_contract_is_wiped_when_no_load_comes(
    package: SealedPackage, store: PackageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "AHEAD_SECONDS", 0.05)
    link = Link(package)
    source = source_of(link, store)
    source.contract(package.digest)
    opened = source._ahead[package.digest]
    deadline = time.monotonic() + 30
    while link.leases.held():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not source._ahead and source.contracts.find(package.digest) == (False, None)
    with pytest.raises(SealError, match="already wiped"):
        _ = opened.tensors


def test_a_lease_that_is_over_takes_the_contract_along(package: SealedPackage, store: PackageStore) -> None:
    link = Link(package)
    source = source_of(link, store)
    source.contract(package.digest)
    link.leases.give_back(package.digest)  # so the load must ask again
    source.load(package.digest)
    assert link.asked == [(package.digest, "serve")] * 2
    source.contract(package.digest)
    source.forget(package.digest)
    assert source.contracts.find(package.digest) == (False, None)
