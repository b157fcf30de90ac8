"""A platform, a creator's machine, and the real command on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from creator_cli import device_login, http_client, upload
from creator_cli.main import app
from tests.creator_cli.adapters import write_adapter, write_listing
from tests.creator_cli.platform_double import Platform
from tests.creator_cli.platform_server import RunningPlatform


@dataclass
class Machine:
    """A creator's machine: its folders, and the platform it talks to."""

    folder: Path
    running: RunningPlatform

    @property
    def platform(self) -> Platform:
        return self.running.platform

    @property
    def config_dir(self) -> Path:
        return self.folder / "config"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "INTARSIA_CONFIG_DIR": str(self.config_dir),
            "INTARSIA_CACHE_DIR": str(self.folder / "cache"),
            "INTARSIA_URL": self.running.url,
            "INTARSIA_TOKEN": "",
            "INTARSIA_DEBUG": "",
        }

    def run(self, *arguments: str, stdin: str | None = None, **environment: str) -> Result:
        """Run `intarsia …`; the exit code is the caller's to check."""
        return CliRunner().invoke(app, list(arguments), input=stdin, env={**self.environment, **environment})

    def ok(self, *arguments: str, stdin: str | None = None, **environment: str) -> Result:
        """Run `intarsia …`, which must succeed."""
        result = self.run(*arguments, stdin=stdin, **environment)
        assert result.exit_code == 0, result.output
        return result

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        """Run with --json: standard output must be one document and nothing else."""
        result = self.run(*arguments, "--json")
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)

    def login(self) -> Result:
        return self.ok("login")

    @property
    def token(self) -> str:
        return str(json.loads((self.config_dir / "config.json").read_text())["token"])

    @property
    def packages(self) -> list[Path]:
        return list((self.folder / "cache").rglob("package.sealed"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine that is not logged in; retries do not wait."""
    for module in (http_client, upload):
        monkeypatch.setattr(module, "RETRY_WAITS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(device_login, "SHORTEST_WAIT", 0.0)
    monkeypatch.setattr(device_login, "SLOWER", 0.0)
    blobs = tmp_path / "platform"
    blobs.mkdir()
    running = RunningPlatform(blobs)
    yield Machine(tmp_path, running)
    running.stop()


@pytest.fixture
def creator(machine: Machine) -> Machine:
    """The same, logged in."""
    machine.login()
    return machine


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    """A folder with a good adapter."""
    return str(write_adapter(tmp_path / "adapter"))


@pytest.fixture
def listing(tmp_path: Path) -> str:
    """A listing file of acme/triage with card and price."""
    return str(write_listing(tmp_path / "listing"))
