"""One Ray Serve application for each pool: `import_path: serving.fleet.app:build` in `deploy/serve.yaml`."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from ray import serve
from ray.serve import Application

from serving.fleet.replica import FleetReplica
from serving.fleet.settings import PoolSettings

# Ray looks every two seconds; a replica that did not answer three times is replaced.
_HEALTH_PERIOD_SECONDS, _HEALTH_TIMEOUT_SECONDS = 2.0, 5.0
# Beyond the drain: the last events of streams, the journal, the good-bye.
_CLOSING_SECONDS = 20.0
_METRICS_SECONDS = 1.0
# Other settings than these have effect in a replica's process alone, so that another value needs another process.
_OF_THE_CONTROLLER = ("min_replicas", "max_replicas", "targets", "surge_percent")


def build(arguments: dict[str, Any]) -> Application:
    """Return the application of the pool that `PoolSettings` describe. Raises ConfigError."""
    settings = PoolSettings.parse(arguments)
    deployment = serve.deployment(name=settings.pool, **deployment_options(settings))(FleetReplica)
    return deployment.options(version=version_of(settings), _internal=True).bind(arguments)


def version_of(settings: PoolSettings) -> str:
    """Return a digest of what a running replica cannot take over; another digest replaces the replicas.

    Without one `serve.run` invents a version at each call: a head that came back would replace its whole fleet.
    """
    of_replicas = {
        name: value for name, value in msgspec.to_builtins(settings).items() if name not in _OF_THE_CONTROLLER
    }
    return hashlib.sha256(msgspec.json.encode(of_replicas, order="deterministic")).hexdigest()[:16]


def deployment_options(settings: PoolSettings) -> dict[str, Any]:
    """Return the options of a pool's deployment.

    A replica gets a placement group of one bundle: its processor time, its memory and all its GPUs on one node, for its
    ranks are children of its process.
    """
    bundle: dict[str, float] = {"CPU": settings.cpus}
    actor: dict[str, Any] = {"num_cpus": settings.cpus}
    if gpus := settings.reserved_gpus:
        bundle["GPU"] = actor["num_gpus"] = gpus
    if settings.accelerator:
        bundle[f"accelerator_type:{settings.accelerator}"] = 0.001
    if settings.memory_gb:
        bundle["memory"] = actor["memory"] = int(settings.memory_gb * 1e9)
    return {
        "ray_actor_options": actor,
        "placement_group_bundles": [bundle],
        "placement_group_strategy": "STRICT_PACK",
        "health_check_period_s": _HEALTH_PERIOD_SECONDS,
        "health_check_timeout_s": _HEALTH_TIMEOUT_SECONDS,
        "graceful_shutdown_timeout_s": settings.drain_seconds + _CLOSING_SECONDS,
        "graceful_shutdown_wait_loop_s": 0.1,  # no request ever comes through Ray
        "max_surge_percent": settings.surge_percent,  # at 0 Ray stops a replica before its successor serves
        **_count(settings),
    }


def _count(settings: PoolSettings) -> dict[str, Any]:
    """Return how many replicas there are: always by our policy, which also tells the platform how the pool stands."""
    return {
        "autoscaling_config": {
            "min_replicas": settings.min_replicas,
            "max_replicas": settings.max_replicas,
            "initial_replicas": max(1, settings.min_replicas),
            # Called deprecated, but the variable that is to replace it does nothing in 2.60 (default: 10 s).
            "metrics_interval_s": _METRICS_SECONDS,
            "look_back_period_s": 3 * _METRICS_SECONDS,
            # The policy has its own sense of time.
            "upscale_delay_s": 0,
            "downscale_delay_s": 0,
            "policy": {
                "policy_function": "serving.fleet.scaling:PoolScaling",
                "policy_kwargs": {
                    "pool": settings.pool,
                    "targets": settings.targets,
                    "least": settings.min_replicas,
                    "most": settings.max_replicas,
                    "platform_url": settings.platform_url,
                    "credential_file": settings.credential_file,
                },
            },
        }
    }
