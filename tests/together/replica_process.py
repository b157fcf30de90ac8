"""A real replica process and the platform's internal API, for tests that need both ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from django.conf import settings as django_settings

from devstack.memory_lock import can_lock
from marketplace.catalog.models import BaseModel, Version
from marketplace.catalog.services import add_checkpoint, read_base_folder, register_reference
from marketplace.vault.identities import Terms, issue_credential
from marketplace.vault.models import Replica
from protocol.checkpoints import ComputedIn
from sealed_weights import CreatorIdentity, generate_key, seal_package
from tests.marketplace.vault.factories import Sold, make_model, make_sold
from tests.together.tiny import Tiny
from tests.warm import REPOSITORY, Child, warm

# A machine whose limit is small is to pass as well; another test shows what a replica without this flag does there.
UNLOCKED = [] if can_lock(1 << 28) else ["--allow-unlocked-memory"]


@dataclass
class ReplicaProcess:
    """`python -m serving` with the platform's flags, restartable on one port and state folder."""

    platform_url: str
    model: Path
    state_dir: Path
    name: str = "tiny-replica"
    dtype: str = "float32"
    port: int = field(default_factory=lambda: free_port())
    process: subprocess.Popen[bytes] | Child | None = None
    flags: list[str] = field(default_factory=list)  # more of them
    warm: bool = True  # forked from a process that has torch, not started

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        arguments = [
            "--model",
            str(self.model),
            "--port",
            str(self.port),
            "--dtype",
            self.dtype,
            "--device",
            "cpu",
            "--threads",
            "1",
            "--kv-cache-mb",
            "8",
            "--adapter-memory-mb",
            "8",
            *UNLOCKED,
            *self.flags,
            "--platform-url",
            self.platform_url,
            "--advertise-url",
            self.url,
            "--state-dir",
            str(self.state_dir),
            "--replica-name",
            self.name,
            "--credential-file",
            str(self.state_dir.parent / "credential"),
        ]
        with (self.state_dir.parent / "replica.log").open("ab") as log:
            if self.warm:
                self.process = warm().start("serving", *arguments, output=log)
            else:
                command = [sys.executable, "-m", "serving", *arguments]
                self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
        deadline = time.monotonic() + 180
        while not self.ready():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    @contextmanager
    def running(self) -> Iterator[ReplicaProcess]:
        """Enrol this replica as staff do, start it, and kill it afterwards, whichever process it then is."""
        try:
            _enrol(self)
            self.start()
            yield self
        finally:
            if self.process is not None:
                self.process.kill()
                self.process.wait(60)

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def log(self) -> str:
        return (self.state_dir.parent / "replica.log").read_text(errors="replace")[-3000:]

    def row(self) -> Replica:
        return Replica.objects.get(name=self.name, gone_at__isnull=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _enrol(process: ReplicaProcess) -> None:
    """Let a replica enrol at its first start, as staff do."""
    computed = ComputedIn.of_flags(dtype=process.dtype, kv_dtype="auto", adapter_dtype="auto")
    folder = read_base_folder(process.model, computed)
    # A second precision of the same files joins the line of the first.
    first = BaseModel.objects.filter(is_reference=True).exclude(fingerprint=folder.fingerprint).first()
    if first is None:
        base = register_reference(name="tiny", folder=folder)
    else:
        base = add_checkpoint(line=first.line, name=f"tiny-{process.dtype}", folder=folder)
    credential = issue_credential(name=process.name, terms=Terms(base, "127.0.0.1"))
    (process.state_dir.parent / "credential").write_text(credential)


def sell(
    tiny: Tiny,
    adapter: str,
    tmp_path: Path,
    *,
    state: str = "published",
    fake_base: bytes | None = None,
    folder: Path | None = None,
) -> Sold:
    """Seal an adapter as a creator does, put it where uploads end, and let the vault take in its key.

    folder: of the adapter, if it is none of `tiny`
    """
    base = BaseModel.objects.get(is_reference=True)
    model, identity, dek = make_model(base=base), CreatorIdentity.generate(), generate_key()
    sealed = seal_package(
        folder or tiny.adapters / adapter,
        tmp_path / f"{adapter}.sealed",
        dek=dek,
        identity=identity,
        creator_id=model.organization_id,
        model_id=model.pk,
        version=1,
        base_fingerprint=fake_base or bytes.fromhex(base.fingerprint),
        chunk_size=4096,
    )
    target = django_settings.ENV.blob_dir / "packages" / sealed.digest
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(sealed.path.read_bytes())
    sold = make_sold(state, model=model, identity=identity, dek=dek, digest=sealed.digest)
    Version.objects.filter(pk=sold.version.pk).update(package_size=sealed.size)
    sold.version.refresh_from_db()
    return sold
