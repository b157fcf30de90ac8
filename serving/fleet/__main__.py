"""`python -m serving.fleet`: a whole fleet on this machine, for `make fleet` and tests: Ray's head and every pool.

Everything listens on loopback, which is checked. In production Ray is started by its own means (`deploy/`).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from serving.errors import ConfigError
from serving.fleet.environment import prepare_environment
from serving.fleet.loopback import listeners
from serving.fleet.settings import PoolSettings

LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.2
_OBJECT_STORE_BYTES = 80 << 20  # nothing of ours goes there; Ray's least is 75 MB


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Exit code 2: a setting is wrong, or a port would be open to others.

    SIGHUP reads the pools again: those that changed are updated, replica by replica.
    """
    parser = argparse.ArgumentParser(prog="python -m serving.fleet", description="A fleet on this machine alone.")
    parser.add_argument("--pools", type=Path, required=True, help='JSON: {"pools": [settings of one pool, …]}')
    parser.add_argument("--token-file", type=Path, required=True, help="file of Ray's token (mode 0600)")
    parser.add_argument("--ready-file", type=Path, help="is written when every pool serves: process ids and pools")
    arguments = parser.parse_args(argv)
    signals: SimpleQueue[int] = SimpleQueue()
    _hear(signals)
    try:
        prepare_environment(arguments.token_file)
        with _ray_folder(arguments.pools) as folder:
            _serve(arguments.pools, arguments.ready_file, folder, signals)
    except (ConfigError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _hear(signals: SimpleQueue[int]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))


def _serve(pools_file: Path, ready_file: Path | None, folder: str, signals: SimpleQueue[int]) -> None:
    import ray  # after the environment was set
    from ray import serve

    pools = _read(pools_file)
    try:
        ray.init(
            num_cpus=sum(math.ceil(one.cpus * (one.max_replicas + one.surge)) for one in pools),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            _temp_dir=folder,
        )
        # Ray puts a handler of its own before ours, which aborts the process three seconds after SIGTERM.
        _hear(signals)
        _check_loopback(_family())
        serve.start(proxy_location="Disabled")
        while True:
            if not _deploy(pools, signals):
                return
            pids = _family()
            _check_loopback(pids)
            if ready_file is not None:
                ready_file.write_text(json.dumps({"pids": pids, "pools": [one.pool for one in pools]}))
            print("every pool serves", flush=True)
            if signals.get() != signal.SIGHUP:
                return
            pools = _read(pools_file)
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()


def ray_folder(pools_file: Path) -> Path:
    """Return the folder of Ray's sockets and logs: a short path, as sockets need, that a killed fleet's successor finds
    and empties."""
    mark = hashlib.sha256(str(pools_file.absolute()).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"intarsia-ray-{mark}"


@contextlib.contextmanager
def _ray_folder(pools_file: Path) -> Iterator[str]:
    """Make the folder of Ray's sockets and logs, and remove it at the end."""
    folder = ray_folder(pools_file)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(pools_file: Path) -> list[PoolSettings]:
    return [PoolSettings.parse(one) for one in json.loads(pools_file.read_text())["pools"]]


def _deploy(pools: list[PoolSettings], signals: SimpleQueue[int]) -> bool:
    """Start or update the pools; returns True when all of them serve, False when a signal asks for the end.

    Raises ConfigError when a pool cannot serve.
    """
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    from serving.fleet.app import build

    serve.run_many(
        [serve.RunTarget(target=build(msgspec.to_builtins(one)), name=one.pool, route_prefix=None) for one in pools],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )
    while True:
        applications = serve.status().applications
        found = {applications[one.pool].status for one in pools if one.pool in applications}
        if ApplicationStatus.DEPLOY_FAILED in found:  # "unhealthy" is a pool of which a replica is being replaced
            raise ConfigError("; ".join(one.message for one in applications.values() if one.message))
        if found == {ApplicationStatus.RUNNING}:
            return True
        with contextlib.suppress(Empty):
            if signals.get(timeout=_LOOK_SECONDS) != signal.SIGHUP:
                return False


def _check_loopback(pids: list[int]) -> None:
    """Raise ConfigError if any of these processes can be reached from another machine."""
    beyond = [one for one in listeners(pids) if not one.is_loopback]
    if beyond:
        raise ConfigError(f"Ray listens beyond this machine, which it may not here: {beyond}")


def _family() -> list[int]:
    """Return the ids of this process and all its descendants (Linux)."""
    family, new = [os.getpid()], [os.getpid()]
    while new:
        found: list[int] = []
        for pid in new:
            try:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
            except OSError:
                continue
        family, new = family + found, found
    return family


if __name__ == "__main__":
    sys.exit(main())
