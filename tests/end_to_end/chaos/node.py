"""A machine of the fleet: one real replica process, its disk, its clock and its cables, all of which can fail."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from devstack.memory_lock import can_lock
from devstack.state import REPOSITORY
from devstack.supervisor import die_with_parent
from tests.end_to_end.chaos.cable import Cable

START_SECONDS = 180.0
_UNLOCKED = [] if can_lock(1 << 28) else ["--allow-unlocked-memory"]
# A replica that speaks a protocol of its own: the constant is changed before any module reads it.
_OTHER_PROTOCOL = (
    "import runpy, sys; import protocol.version as v; v.PROTOCOL_VERSION += 7; sys.argv[0] = 'serving'; "
    "runpy.run_module('serving', run_name='__main__')"
)


def build_clock(folder: Path) -> Path:
    """Compile the clock that replicas are given."""
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@dataclass
class Node:
    """`name` and `credential` are as staff issued them; `inward` leads to the replica, `outward` to the platform."""

    name: str
    credential: str
    model: Path
    folder: Path
    platform_url: str
    clock: Path  # the library
    other_protocol: bool = False
    port: int = field(default_factory=lambda: _free_port())
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._step = self.folder / "clock"
        self._step.write_bytes(struct.pack("=q", 0))
        self._write_credential()
        self.inward = Cable(self.port)
        self.outward = Cable(urlsplit(self.platform_url).port or 80)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; `wait_until_ready` says when it serves."""
        program = ["-c", _OTHER_PROTOCOL] if self.other_protocol else ["-m", "serving"]
        flags: Mapping[str, object] = {
            "--model": self.model,
            "--port": self.port,
            "--dtype": "float32",
            "--device": "cpu",
            "--threads": 1,
            "--kv-cache-mb": 8,
            "--adapter-memory-mb": 8,
            "--platform-url": f"http://127.0.0.1:{self.outward.port}",
            "--advertise-url": f"http://127.0.0.1:{self.inward.port}",
            "--state-dir": self.folder / "state",
            "--replica-name": self.name,
            "--credential-file": self.folder / "credential",
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, *_UNLOCKED, *(str(part) for pair in flags.items() for part in pair)],
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                env={**os.environ, "LD_PRELOAD": str(self.clock), "CHAOS_CLOCK": str(self._step)},
                preexec_fn=die_with_parent(signal.SIGKILL),
            )

    def wait_until_ready(self) -> None:
        """Return when the platform knows the replica. Raises AssertionError if it ends or takes too long."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            assert self.process.poll() is None and time.monotonic() < deadline, f"{self.name}: {self.log()}"
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Return whether the replica itself says so, past its cable."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def close(self) -> None:
        """End everything."""
        self.kill()
        self.inward.close()
        self.outward.close()

    def log(self) -> str:
        """Return the end of the log."""
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    # -- what can happen to it -----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process at once, frozen or not."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)

    def lose(self) -> None:
        """Lose the machine: the process and all that it ever wrote."""
        self.kill()
        shutil.rmtree(self.folder / "state")

    def freeze(self) -> None:
        """Stop the process where it stands."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Let no file grow any more."""
        self._limit_files(0)

    def empty_disk(self) -> None:
        """Let files grow."""
        self._limit_files(resource.RLIM_INFINITY)

    def step_clock(self, seconds: int) -> None:
        """Let the wall clock of the process be ahead by so many seconds, behind where they are negative."""
        with self._step.open("r+b") as file:
            file.write(struct.pack("=q", seconds))

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _limit_files(self, size: int) -> None:
        assert self.process is not None
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _write_credential(self) -> None:
        (self.folder / "credential").write_text(self.credential)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
