"""One pool of replicas as an operator describes it: the `args` of its application in `deploy/serve.yaml`.

No value is a secret: what is one comes from a file, of which the path stands here. Ray keeps these values in its GCS.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit

import msgspec

from protocol.names import FleetName, is_pool_name
from serving import config as serving_settings
from serving.config import ServingConfig
from serving.errors import ConfigError
from serving.fleet.slots import MAX_SLOTS
from serving.platform import config as platform_settings

Flag = str | int | float | bool
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Replicas = Annotated[int, msgspec.Meta(ge=0, le=500)]  # more strain Ray's one controller; start another cluster
# Set by the fleet itself, or never right in one.
_RESERVED = frozenset({"model", "host", "port", "insecure", "adapters", "shutdown_grace_s"})


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pool: replicas of one base model in one precision and role, on one kind of hardware.

    pool: its name; the first part of its replicas' names, and what its credential is issued for
    model: folder of the base model on every node
    platform_url: the platform's web process
    state_dir: folder on a disk of the node that outlives its processes: journals, identities, packages
    credential_file: the fleet credential of this pool (`manage.py issue_fleet_credential`)
    address: that replicas listen on and are reached at; empty: that from which the node reaches the platform
    ports: the first and the last port that a replica may take, for a firewall; 0 and 0: any free one
    transfer_port: that of slot 0, from which other replicas pull KV; the next slot has the next one. 0: none does, and
        the conversations of a replica that drains are computed again elsewhere
    cpus, gpus: reserved for one replica, on one node; gpus is the number of its ranks (flag `tensor_parallel`), or 0:
        one for each of several ranks, none for a single one and on `device: cpu`
    accelerator: the GPU's kind as Ray names it, such as "H100"
    memory_gb: reserved for one replica; 0: not counted
    min_replicas, max_replicas: 0 lets the pool be scaled to zero
    targets: `targets.json` of a plan, on every node; empty: the policy's own limits
    surge_percent: replicas started on top while all are replaced; 0 needs no spare node and serves with one less
    drain_seconds: for the predictions that run when a replica is stopped
    start_seconds: until a replica must be registered and warm
    revision: any text; another one replaces the replicas, one after the other
    flags: of `python -m serving`, without dashes in front and with underscores
    """

    pool: str
    model: str
    platform_url: str
    state_dir: str
    credential_file: str
    address: str = ""
    ports: tuple[Port, Port] = (0, 0)
    transfer_port: Annotated[int, msgspec.Meta(ge=0, le=65_535 - MAX_SLOTS)] = 0
    cpus: Annotated[float, msgspec.Meta(gt=0, le=1024)] = 1.0
    gpus: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    accelerator: str = ""
    memory_gb: Annotated[float, msgspec.Meta(ge=0, le=65_536)] = 0.0
    min_replicas: Replicas = 1
    max_replicas: Replicas = 1
    targets: str = ""
    surge_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 25
    drain_seconds: Seconds = 60.0
    start_seconds: Seconds = 900.0
    revision: str = ""
    allow_unlocked_memory: bool = False
    flags: dict[str, Flag] = {}

    @classmethod
    def parse(cls, arguments: dict[str, Any]) -> PoolSettings:
        """Read and check the arguments of an application. Raises ConfigError."""
        try:
            settings = msgspec.convert(arguments, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"arguments of the pool: {error}") from None
        if not is_pool_name(settings.pool):
            raise ConfigError("pool: lower-case letters, digits and inner dashes, at most 40")
        if settings.max_replicas < max(1, settings.min_replicas):
            raise ConfigError("max_replicas: at least 1, and at least min_replicas")
        if settings.ports[0] > settings.ports[1] or (settings.ports[1] and not settings.ports[0]):
            raise ConfigError("ports: the first and the last one, or 0 and 0")
        if settings.gpus and settings.gpus != settings._ranks:
            raise ConfigError(f"gpus: {settings._ranks}, as many as ranks of tensor_parallel, or 0")
        if reserved := sorted(_RESERVED & settings.flags.keys()):
            raise ConfigError(f"flags: {', '.join(reserved)} may not be set here")
        return settings

    def arguments_of_replica(self) -> list[str]:
        """Return the flags as argv, without the ones that only a replica on its node can know."""
        flags: dict[str, Flag] = {"threads": max(1, int(self.cpus))} | self.flags
        return [
            f"--model={self.model}",
            f"--shutdown-grace-s={self.drain_seconds}",
            *(_as_argument(name, value) for name, value in flags.items()),
        ]

    def serving_config(self, address: str) -> ServingConfig:
        """Return what `python -m serving` makes of the same flags. Raises ConfigError."""
        parser = _Parser(add_help=False, allow_abbrev=False)
        serving_settings.add_flags(parser)
        return serving_settings.from_args(
            parser.parse_args([*self.arguments_of_replica(), f"--host={address}", "--port=0"])
        )

    def platform_config(self, name: FleetName, url: str) -> platform_settings.PlatformConfig:
        """Return the settings towards the platform of the replica `name`, reached at `url`. Raises ConfigError."""
        parser = _Parser(add_help=False, allow_abbrev=False)
        platform_settings.add_flags(parser)
        values = {
            "platform-url": self.platform_url,
            "advertise-url": url,
            "state-dir": self.state_dir,
            "replica-name": str(name),
            "credential-file": self.credential_file,
        }
        if self.transfer_port:
            host = urlsplit(url)
            values["transfer-url"] = f"https://{host.netloc.rpartition(':')[0]}:{self.transfer_port + name.slot}"
            values["transfer-host"] = host.hostname or ""
        arguments = [f"--{flag}={value}" for flag, value in values.items()]
        if self.allow_unlocked_memory:
            arguments.append("--allow-unlocked-memory")
        config = platform_settings.from_args(parser.parse_args(arguments))
        assert config is not None, "a platform's URL is given"
        return dataclasses.replace(config, shared_credential=True)

    @property
    def surge(self) -> int:
        """Return how many replicas Ray starts on top, at most, while all are replaced."""
        return -(-self.max_replicas * self.surge_percent // 100)

    @property
    def reserved_gpus(self) -> int:
        """Return how many GPUs a replica holds: one for each rank, 0 on processors."""
        return self.gpus or (self._ranks if self._ranks > 1 and self.flags.get("device") != "cpu" else 0)

    @property
    def _ranks(self) -> int:
        try:
            return max(1, int(self.flags.get("tensor_parallel", 1)))
        except (TypeError, ValueError):
            raise ConfigError("flags: tensor_parallel is a number") from None

    @property
    def state(self) -> Path:
        """Return the folder of journals, identities, packages and slots."""
        return Path(self.state_dir)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"flags: {message}")


def _as_argument(name: str, value: Flag) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"
