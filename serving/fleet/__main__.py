"""`python -m serving.fleet`: a whole fleet on this machine, for `make fleet` and tests: Ray's head and every pool.

Everything listens on loopback, which is checked. In production Ray is started by its own means (`deploy/`).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from serving.errors import ConfigError
from serving.fleet.environment import prepare_environment

LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 80 << 20  # nothing of ours goes there; Ray's least is 75 MB


class _Stopped(Exception):
    """SIGTERM or SIGINT."""


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Exit code 2: a setting is wrong; 1: the fleet could not start."""
    parser = argparse.ArgumentParser(prog="python -m serving.fleet", description="A fleet on this machine alone.")
    parser.add_argument("--pools", type=Path, required=True, help='JSON: {"pools": [settings of one pool, …]}')
    parser.add_argument("--token-file", type=Path, required=True, help="file of Ray's token (mode 0600)")
    parser.add_argument("--ready-file", type=Path, help="is written when every pool serves: process ids and listeners")
    arguments = parser.parse_args(argv)
    try:
        pools = json.loads(arguments.pools.read_text())["pools"]
        prepare_environment(arguments.token_file)
        return _serve(pools, arguments.ready_file)
    except (ConfigError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _serve(pools: list[dict[str, Any]], ready_file: Path | None) -> int:
    import ray  # after the environment was set
    from ray import serve

    from serving.fleet.app import build
    from serving.fleet.loopback import listeners

    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if not stopped.is_set():
            stopped.set()
            raise _Stopped

    with tempfile.TemporaryDirectory(prefix="intarsia-ray-") as folder:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        try:
            applications = {one["pool"]: build(one) for one in pools}
            ray.init(
                num_cpus=sum(int(one.get("cpus", 1)) * int(one.get("max_replicas", 1)) for one in pools) + 1,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=True,
                configure_logging=False,
                _node_ip_address=LOOPBACK,
                _temp_dir=folder,
            )
            serve.start(proxy_location="Disabled")
            targets = [serve.RunTarget(target=app, name=name, route_prefix=None) for name, app in applications.items()]
            serve.run_many(targets)
            pids = _family()
            open_to_others = [one for one in listeners(pids) if not one.is_loopback]
            if open_to_others:
                raise ConfigError(f"Ray listens beyond this machine, which it may not here: {open_to_others}")
            if ready_file is not None:
                ready_file.write_text(json.dumps({"pids": pids, "pools": list(applications)}))
            print("every pool serves", flush=True)
            while not stopped.wait(3600):
                pass
        except _Stopped:
            pass
        finally:
            if ready_file is not None:
                ready_file.unlink(missing_ok=True)
            if ray.is_initialized():
                serve.shutdown()
                ray.shutdown()
    return 0


def _family() -> list[int]:
    """Return the ids of this process and all its descendants (Linux)."""
    import os

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
