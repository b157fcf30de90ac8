"""`make fleet`: replicas that Ray Serve starts, replaces and counts, on this machine, in two pools.

Both serve the one small base model: as it is, and in eight bits, a checkpoint on which the platform measures every
version before it serves any there.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devstack.memory_lock import can_lock
from devstack.private_file import write_private
from devstack.state import State


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of this machine's fleet, of replicas of one thread."""

    name: str
    dtype: str
    least: int
    most: int


# Three replicas at the start and four at most: 0.9 GB each, on a machine of 8.
POOLS = (Pool("smollm2", "auto", 2, 3), Pool("smollm2-int8", "int8", 1, 1))
REPLICAS_ALLOWED = 8  # of a pool at once: an update starts one on top, and a lost one keeps its place for a while
READY_SECONDS = 600.0  # the first start compiles the CPU kernels
STOP_SECONDS = 60.0
_DRAIN_SECONDS = 15
# KV cache and adapter memory of one replica may grow into one another.
_KV_MB, _ADAPTER_MB = 192, 96
LOCKED_BYTES = (_KV_MB + _ADAPTER_MB + 256) << 20


class LocalFleet:
    """The files of the fleet under the state folder."""

    def __init__(self, state: State) -> None:
        """Use the folder `fleet` of the state."""
        self._state = state
        self.folder = state.root / "fleet"

    @property
    def pools_file(self) -> Path:
        return self.folder / "pools.json"

    @property
    def token_file(self) -> Path:
        """Return the file of Ray's token: whoever has it and reaches a port of Ray runs code as this user."""
        return self.folder / "ray-token"

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready.json"

    def preparation(self) -> list[str]:
        """Return the options of `manage.py prepare_platform` that allow the pools."""
        pools = [f"--pool={pool.name}={pool.dtype}" for pool in POOLS]
        return [*pools, f"--pool-replicas={REPLICAS_ALLOWED}", f"--fleet-credentials={self.folder}"]

    def command(self) -> list[str]:
        """Return the module and the arguments of the fleet's process."""
        files = (("pools", self.pools_file), ("token-file", self.token_file), ("ready-file", self.ready_file))
        return ["serving.fleet", *(f"--{name}={path}" for name, path in files)]

    def write(self, platform_url: str) -> None:
        """Write the settings of the pools and, once, the token."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        if not self.token_file.exists():
            write_private(self.token_file, secrets.token_hex(32))
        write_private(self.pools_file, json.dumps({"pools": [self._settings(pool, platform_url) for pool in POOLS]}))

    def _settings(self, pool: Pool, platform_url: str) -> dict[str, Any]:
        return {
            "pool": pool.name,
            "model": str(self._state.base_model),
            "platform_url": platform_url,
            "state_dir": str(self.folder / "state"),
            "credential_file": str(self.folder / f"credential-{pool.name}"),
            "address": "127.0.0.1",
            "min_replicas": pool.least,
            "max_replicas": pool.most,
            "drain_seconds": _DRAIN_SECONDS,
            "allow_unlocked_memory": not can_lock(LOCKED_BYTES),
            "flags": {
                "dtype": pool.dtype,
                "kv_cache_mb": _KV_MB,
                "adapter_memory_mb": _ADAPTER_MB,
                "max_num_seqs": 16,
                "adapter_slots": 8,
            },
        }
