"""The actor that Ray Serve sees: a life and a few numbers.

No prompt, token, key or weight passes through a Ray call.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray

from sealed_weights.process import keep_memory_private
from serving import logs
from serving.fleet.addresses import address_towards_url
from serving.fleet.loopback import keep_on_loopback
from serving.fleet.settings import PoolSettings

__all__ = ["FleetReplica"]


class FleetReplica:
    """One replica of a pool. The constructor returns when callers can be served, so that a rolling update waits."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Start the replica that `PoolSettings` describe. Raises what `HostedReplica.start` raises."""
        keep_memory_private()
        settings = PoolSettings.parse(arguments)
        address = settings.address or address_towards_url(settings.platform_url)
        keep_on_loopback(ray.util.get_node_ip_address())
        logs.configure()
        from serving.fleet.hosted import HostedReplica  # torch comes with it

        self._hosted = HostedReplica.start(settings, address)

    def check_health(self) -> None:
        """Raise when only another process can help; Ray then replaces this one."""
        self._hosted.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load, for `PoolScaling`."""
        return self._hosted.load()

    async def __del__(self) -> None:
        """Drain. Ray waits for it at most `graceful_shutdown_timeout_s`."""
        hosted = getattr(self, "_hosted", None)
        if hosted is not None:
            await asyncio.to_thread(hosted.drain)
