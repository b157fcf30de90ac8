"""`python -m serving.fleet.node`: one node of a Ray cluster, where nothing else (KubeRay, a cloud) starts Ray.

    python -m serving.fleet.node --head --applications deploy/serve.yaml
    python -m serving.fleet.node --join HEAD:6379 --state-dir /var/lib/intarsia

The head decides and serves nobody. At SIGTERM a node drains before Ray ends: its replicas start elsewhere, and
finish here. With RAY_REDIS_ADDRESS the state of the head lies in a Valkey and outlives it; its password is the token.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.fleet.addresses import address_towards, own_address
from serving.fleet.drain_node import DRAIN_SECONDS, drain
from serving.fleet.environment import RAY_ENVIRONMENT, TOKEN_PATH, prepare_environment

_PORT = 6379
_OBJECT_STORE_BYTES = 80 << 20
_START_SECONDS = 60.0
# For how long a node and its replicas go on without a head, in seconds, as KubeRay has it (Ray's default: 60).
_ALONE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}


class _Stopped(Exception):
    """SIGTERM or SIGINT."""


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM, SIGINT or the end of Ray. Exit code 2: a setting is wrong; 1: Ray ended by itself."""
    parser = argparse.ArgumentParser(prog="python -m serving.fleet.node", description="One node of a fleet.")
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--head", action="store_true", help="the head of a cluster; no replica runs there")
    role.add_argument("--join", metavar="HOST:PORT", help="a node of the cluster with this head")
    parser.add_argument("--applications", type=Path, help="what the head deploys: a file as deploy/serve.yaml")
    parser.add_argument("--address", help="of this node (default: its name's; of a node, that towards the head)")
    parser.add_argument("--num-cpus", type=int, help="processors for replicas (default: all of this machine)")
    parser.add_argument("--state-dir", type=Path, default=Path("/var/lib/intarsia"), help="of this node's replicas")
    arguments = parser.parse_args(argv)
    try:
        token = Path(os.environ.get(TOKEN_PATH, ""))
        prepare_environment(token, alone=False)
        command = _command(arguments, token.read_text().strip())
        head = arguments.join or f"{arguments.address or own_address()}:{_PORT}"
        if arguments.head:
            _forget_last_head(arguments.address or own_address())
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _hear()
    own = RAY_ENVIRONMENT if arguments.head else RAY_ENVIRONMENT | _ALONE
    ray = subprocess.Popen(command, env=os.environ | own, start_new_session=True)
    os.environ["RAY_ADDRESS"] = head  # what "auto" means here, whatever other clusters this machine has seen
    try:
        if arguments.applications is not None:
            deploy(arguments.applications)
            _hear()  # Ray has put a handler before ours, which aborts the process three seconds after SIGTERM
        return 1 if ray.wait() else 0
    except _Stopped:
        if arguments.join:
            drain(arguments.state_dir, DRAIN_SECONDS)
        return 0
    finally:
        ray.terminate()
        ray.wait()


def _hear() -> None:
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise _Stopped


def _command(arguments: argparse.Namespace, token: str) -> list[str]:
    """Return argv of `ray start`, in the foreground."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
    command.append(f"--object-store-memory={_OBJECT_STORE_BYTES}")
    if arguments.head:
        address = arguments.address or own_address()
        command += ["--head", f"--port={_PORT}", f"--node-ip-address={address}", "--num-cpus=0"]
        command += ["--include-dashboard=false"]
        if os.environ.get("RAY_REDIS_ADDRESS"):
            command.append(f"--redis-password={token}")
        return command
    host = arguments.join.rpartition(":")[0]
    command += [f"--address={arguments.join}", f"--node-ip-address={arguments.address or address_towards(host)}"]
    if arguments.num_cpus is not None:
        command.append(f"--num-cpus={arguments.num_cpus}")
    return command


def _forget_last_head(address: str) -> None:
    """Have Ray forget the head that ran here before. Raises ConfigError if it still runs.

    `ray start --head` takes its head for running while any process of this machine names that address as its head's,
    as a node beside it does that waits for the head to come back.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, _PORT), family=family).close()
    except OSError as error:
        raise ConfigError(f"{address}, port {_PORT}: {error.strerror}") from None
    from ray._common.utils import reset_ray_address  # what `ray stop` does, which would end the node, too

    reset_ray_address()


def deploy(file: Path) -> None:
    """Deploy the applications of a file as `deploy/serve.yaml` on this machine's cluster; what is there is updated.

    It does not wait for replicas. Raises ConfigError, and TimeoutError when Ray does not come up.
    """
    import ray
    from ray import serve

    from serving.fleet.app import build

    targets = [
        serve.RunTarget(target=build(one["args"]), name=one["name"], route_prefix=None) for one in applications(file)
    ]
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            ray.init(address="auto", log_to_driver=False)
            break
        except ConnectionError as error:
            if time.monotonic() > deadline:
                raise TimeoutError("Ray did not come up") from error
            time.sleep(0.5)
    serve.start(proxy_location="Disabled")
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def applications(file: Path) -> list[dict[str, Any]]:
    """Return the applications of a file that Serve's own schema accepts. Raises ConfigError."""
    import yaml
    from ray.serve.schema import ServeDeploySchema

    try:
        config = yaml.safe_load(file.read_text())
        ServeDeploySchema.model_validate(config)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: {error}") from None
    found: list[dict[str, Any]] = config["applications"]
    return found


if __name__ == "__main__":
    sys.exit(main())
