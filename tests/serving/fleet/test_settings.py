"""What an operator may say about a pool, and what Ray is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.names import FleetName
from serving.errors import ConfigError
from serving.fleet.app import build, deployment_options
from serving.fleet.environment import RAY_ENVIRONMENT, prepare_environment
from serving.fleet.settings import PoolSettings


def pool(**changes: Any) -> PoolSettings:
    arguments = {
        "pool": "small",
        "model": "/models/base",
        "platform_url": "http://web:8000",
        "state_dir": "/var/lib/intarsia",
        "credential_file": "/var/lib/credentials/small",
    }
    return PoolSettings.parse(arguments | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pool": "Small"}, "lower-case"),
        ({"replicas": 3}, "unknown field"),
        ({"max_replicas": 0}, "at least 1"),
        ({"min_replicas": 3, "max_replicas": 2}, "at least min_replicas"),
        ({"ports": [0, 9]}, "the first and the last"),
        ({"cpus": 0}, "cpus"),
        ({"flags": {"port": 8000}}, "port may not be set here"),
        ({"flags": {"insecure": True}}, "insecure may not be set here"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        pool(**changes)


def test_flags_are_those_of_a_plain_replica(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = pool(model=str(tmp_path), cpus=2, flags={"dtype": "int8", "kv_cache_mb": 8, "prefix_caching": False})
    config = settings.serving_config("10.0.0.7")
    assert (config.dtype, config.kv_cache_mb, config.prefix_caching, config.threads) == ("int8", 8, False, 2)
    assert (config.host, config.port, config.shutdown_grace_s, config.insecure) == ("10.0.0.7", 0, 60.0, False)
    with pytest.raises(ConfigError, match="no-such-flag"):
        pool(model=str(tmp_path), flags={"no_such_flag": 1}).serving_config("10.0.0.7")
    with pytest.raises(ConfigError, match="kv-cache-mb"):
        pool(model=str(tmp_path), flags={"kv_cache_mb": -1}).serving_config("10.0.0.7")


def test_the_credential_of_a_fleet_is_shared_and_its_replica_has_the_slots_name() -> None:
    platform = pool().platform_config(FleetName("small", "n1", 0), "http://10.0.0.7:20000")
    assert platform.shared_credential and platform.replica_name == "small-n1-0"
    assert platform.journal_dir == Path("/var/lib/intarsia/journals/small-n1-0")
    assert platform.identity_dir == Path("/var/lib/intarsia/identities/small-n1-0")
    assert not platform.allow_unlocked_memory and platform.transfer_url is None


def test_each_slot_is_pulled_from_at_a_port_of_its_own() -> None:
    name = FleetName("small", "n1", 3)
    platform = pool(transfer_port=21_000).platform_config(name, "http://10.0.0.7:20000")
    assert (platform.transfer_url, platform.transfer_host) == ("https://10.0.0.7:21003", "10.0.0.7")
    platform = pool(transfer_port=21_000).platform_config(name, "http://[fd00::7]:20000")
    assert (platform.transfer_url, platform.transfer_host) == ("https://[fd00::7]:21003", "fd00::7")


def test_ray_waits_longer_than_a_drain_and_starts_before_it_stops() -> None:
    options = deployment_options(pool(drain_seconds=120))
    assert options["graceful_shutdown_timeout_s"] > 120
    assert options["max_surge_percent"] > 0


def test_a_replica_reserves_all_its_gpus_on_one_node() -> None:
    options = deployment_options(pool(gpus=2, cpus=8, accelerator="H100", memory_gb=64, flags={"tensor_parallel": 2}))
    assert options["placement_group_bundles"] == [
        {"CPU": 8.0, "GPU": 2, "accelerator_type:H100": 0.001, "memory": 64_000_000_000}
    ]
    assert options["placement_group_strategy"] == "STRICT_PACK"
    assert options["ray_actor_options"]["num_gpus"] == 2


def test_every_rank_reserves_a_gpu() -> None:
    assert pool(flags={"tensor_parallel": 4}).reserved_gpus == 4
    assert pool(flags={"tensor_parallel": "4", "device": "cpu"}).reserved_gpus == 0
    assert pool().reserved_gpus == 0
    assert pool(gpus=1).reserved_gpus == 1
    for gpus, ranks in ((1, 2), (2, 1), (4, 2)):
        with pytest.raises(ConfigError, match="as many as ranks"):
            pool(gpus=gpus, flags={"tensor_parallel": ranks})
    with pytest.raises(ConfigError, match="is a number"):
        pool(gpus=1, flags={"tensor_parallel": "two"})


def test_replicas_are_replaced_for_what_they_cannot_take_over_and_for_nothing_else() -> None:
    """Serve invents a version where it gets none, and then replaces the whole pool whenever it is deployed."""

    def version(**changes: Any) -> str | None:
        deployment = build(msgspec.to_builtins(pool(max_replicas=2, **changes)))._bound_deployment
        return deployment.version

    same = version()
    assert same and same == version()
    assert same == version(min_replicas=2) == version(surge_percent=0) == version(targets="/etc/targets.json")
    assert len({same, version(revision="2"), version(model="/models/other"), version(flags={"dtype": "int8"})}) == 4


def test_a_pool_that_may_grow_is_counted_by_our_policy_every_second() -> None:
    config = deployment_options(pool(min_replicas=0, max_replicas=4))["autoscaling_config"]
    assert (config["min_replicas"], config["initial_replicas"], config["max_replicas"]) == (0, 1, 4)
    assert config["metrics_interval_s"] == 1 and config["upscale_delay_s"] == config["downscale_delay_s"] == 0
    assert config["policy"]["policy_function"] == "serving.fleet.scaling:PoolScaling"
    assert config["policy"]["policy_kwargs"] == {
        "pool": "small",
        "targets": "",
        "least": 0,
        "most": 4,
        "platform_url": "http://web:8000",
        "credential_file": "/var/lib/credentials/small",
    }


def test_ray_starts_with_a_strong_token_that_its_owner_alone_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*RAY_ENVIRONMENT, "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "unset")  # given back after the test
    token = tmp_path / "token"
    with pytest.raises(ConfigError):
        prepare_environment(token)
    token.write_text("a" * 64)
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0600"):
        prepare_environment(token)
    token.chmod(0o600)
    prepare_environment(token)
    token.write_text("short")
    with pytest.raises(ConfigError, match="32 bytes"):
        prepare_environment(token)
