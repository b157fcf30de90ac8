"""The memory levels below a replica's KV pool, from its settings."""

from __future__ import annotations

import logging

import torch

from serving.block_copies import BlockCopies
from serving.config import ServingConfig
from serving.errors import ConfigError
from serving.kv.frames import Allocate
from serving.kv.host import HostStore
from serving.kv.pool import BlockPool
from serving.kv.spill import DiskStore
from serving.kv.stores import BlockStore
from serving.kv.tiers import Tiers
from serving.memory import available_bytes, mapped

log = logging.getLogger(__name__)

_GB = 10**9


def build_tiers(
    config: ServingConfig, device: torch.device, pool: BlockPool, copies: BlockCopies, block_bytes: int
) -> Tiers:
    """Open the levels that the settings name, fastest first. Raises ConfigError where one cannot be had."""
    stores: list[BlockStore] = []
    allocate = _pinned if device.type == "cuda" else _plain
    if config.kv_host_gb:
        stores.append(_host(config, device, block_bytes, allocate))
    if config.kv_disk is not None:
        disk = DiskStore(config.kv_disk, int(config.kv_disk_gb * _GB), block_bytes, allocate)
        if not disk.keys.locked:
            log.warning("the keys of spilled KV cannot be locked in RAM (`ulimit -l`): they may reach swap")
        stores.append(disk)
    for store in stores:
        log.info("%d more KV blocks fit into the level %s", store.slots, store.name)
    return Tiers(pool, stores, copies)


def _host(config: ServingConfig, device: torch.device, block_bytes: int, allocate: Allocate) -> HostStore:
    if device.type != "cuda":
        raise ConfigError("--kv-host-gb: on a CPU the KV cache is host memory already; raise --kv-cache-mb instead")
    wanted, available = int(config.kv_host_gb * _GB), available_bytes()
    if available and wanted > available:
        raise ConfigError(
            f"--kv-host-gb {config.kv_host_gb:g}: {available / _GB:.1f} GB are available on this machine or in this "
            "container"
        )
    if wanted < block_bytes:
        raise ConfigError(f"--kv-host-gb {config.kv_host_gb:g}: one block takes {block_bytes / _GB:.3f} GB")
    return HostStore(wanted // block_bytes, block_bytes, allocate)


def _plain(size: int) -> memoryview:
    return memoryview(mapped(size))


def _pinned(size: int) -> memoryview:
    """Return memory that a GPU reads and writes by itself."""
    return torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy().data
