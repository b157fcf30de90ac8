"""A replica that may not lock the memory of weights says so and does not start, unless it is told to accept it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import sealed_weights.opened
from sealed_weights import MemoryNotLocked, SealedPackage
from sealed_weights.secret_memory import SecretBuffer
from serving.errors import AdapterUnavailable
from serving.platform.packages import PackageStore
from serving.platform.verify_process import check_in_child
from tests.sealed_weights.factories import BASE, open_it
from tests.serving.platform.test_sealed_source import Link, SealedAdapterSource, package, server, store  # noqa: F401
from tests.serving.platform.test_verify_child import key_for
from tests.serving.tiny import Tiny

REPOSITORY = Path(__file__).resolve().parents[3]
REPLICA = """
import logging, resource, sys
from pathlib import Path
from serving.adapters.directory import DirectoryAdapterSource
from serving.config import ServingConfig
from serving.errors import ConfigError
from serving.platform.confinement.namespaces import drop_capabilities
from serving.replica import Base, build_engine

class Leased(DirectoryAdapterSource):
    leased = True

logging.basicConfig()
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
drop_capabilities()
model = Path(sys.argv[1])
config = ServingConfig(model=model, kv_cache_mb=8, adapter_memory_mb=8, threads=1, dtype="float32", device="cpu")
base = Base.from_dir(model)
for must_lock in (True, False):
    try:
        build_engine(config, base, Leased(None, base.spec), must_lock=must_lock)
        print("built")
    except ConfigError as error:
        print(error)
"""

POOR_PARENT = """
import resource, sys
from pathlib import Path
from serving.platform.confinement.namespaces import drop_capabilities
from serving.platform.verify_process import check_in_child
from tests.sealed_weights.factories import BASE, BASE_FINGERPRINT, IDENTITY, MODEL_ID, CREATOR_ID, DEK
from protocol.leases import PackageIdentity
from sealed_weights import verify_signature
from serving.platform.link import HeldKey

resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
drop_capabilities()
path = Path(sys.argv[1])
key = HeldKey("r", verify_signature(path, IDENTITY.public_bytes()), bytearray(DEK), IDENTITY.public_bytes(),
              PackageIdentity(CREATOR_ID, MODEL_ID, 1, BASE_FINGERPRINT.hex()), path.stat().st_size)
checked = check_in_child(path, key, BASE, must_lock=True)
print(checked.verification)
print(checked.missing[-1])
"""


def test_a_replica_without_the_right_to_lock_refuses_to_start_unless_it_is_allowed(tiny: Tiny) -> None:
    command = [sys.executable, "-c", REPLICA, str(tiny.model)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    refused, built = done.stdout.splitlines()
    assert "cannot be locked in RAM" in refused and "0 KiB" in refused and "--allow-unlocked-memory" in refused
    assert built == "built" and "weights may reach swap" in done.stderr


class Unlocked(SecretBuffer):
    """A buffer on a system that refuses the lock."""

    made: list[Unlocked] = []  # noqa: RUF012

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.locked = False
        self.made.append(self)


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> list[Unlocked]:
    monkeypatch.setattr(sealed_weights.opened, "SecretBuffer", Unlocked)
    monkeypatch.setattr(Unlocked, "made", [])
    return Unlocked.made


def test_a_package_is_not_decrypted_into_memory_that_could_reach_swap(
    package: SealedPackage,  # noqa: F811
    unlocked: list[Unlocked],
) -> None:
    with pytest.raises(MemoryNotLocked, match="cannot be locked"):
        open_it(package.path, must_lock=True)
    assert all(buffer._wiped for buffer in Unlocked.made) and len(Unlocked.made) == 1
    open_it(package.path).wipe()


def test_a_replica_loads_no_adapter_into_such_memory_and_keeps_the_package(
    package: SealedPackage,  # noqa: F811
    store: PackageStore,  # noqa: F811
    unlocked: list[Unlocked],
) -> None:
    source = SealedAdapterSource(Link(package), store, BASE, must_lock=True)  # type: ignore[arg-type]
    with pytest.raises(AdapterUnavailable, match="cannot be locked"):
        source.load(package.digest)
    assert store.fetch(package.digest, package.size).is_file() and source.locked_bytes() == 0
    lenient = SealedAdapterSource(Link(package), store, BASE)  # type: ignore[arg-type]
    assert lenient.load(package.digest)
    lenient.release(package.digest)


def test_the_verifying_child_locks_its_memory_or_gives_no_verdict(package: SealedPackage) -> None:  # noqa: F811
    checked = check_in_child(package.path, key_for(package), BASE, must_lock=True)
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] in range(1 << 16):
        # A limit of nothing, as an operator may set: root raises it for the child, an ordinary user cannot.
        assert checked.verification is None or os.geteuid() == 0
    else:
        assert checked.verification is not None and checked.verification.ok, checked.missing


@pytest.mark.deep
def test_a_child_that_may_not_lock_its_memory_gives_no_verdict_and_says_why(
    package: SealedPackage,  # noqa: F811
) -> None:
    # The parent's limit is the child's; without capabilities not even root can raise it.
    command = [sys.executable, "-c", POOR_PARENT, str(package.path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    verdict, reason = done.stdout.splitlines()
    assert verdict == "None" and reason.startswith("locked memory (")
