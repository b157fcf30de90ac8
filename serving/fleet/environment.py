"""Ray's environment in a fleet: the same on every node, set before Ray starts.

Deploy files repeat it; a test compares them.
"""

from __future__ import annotations

import os
from pathlib import Path

from serving.errors import ConfigError

# No value is secret. The token itself lies in the file that RAY_AUTH_TOKEN_PATH names.
RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # or whoever reaches a port of Ray runs code as the replicas' user
    "RAY_USAGE_STATS_ENABLED": "0",  # or Ray reports to its makers
    "RAY_worker_niceness": "0",  # or replicas yield to every other process of the machine (default: 15)
}
# With this Ray takes the machine for one that forms no clusters, and gives the node the loopback address; without it,
# 127.0.0.1 as the node's address is replaced by that of the network, and every port is open to it.
LOOPBACK_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_LEAST_TOKEN_BYTES = 32


def prepare_environment(token_file: Path, *, alone: bool = True) -> None:
    """Set Ray's environment in this process; call it before `import ray`.

    alone: for a cluster of this machine alone, on loopback

    Raises ConfigError for a weak token file.
    """
    try:
        token = token_file.read_bytes().strip()
        mode = token_file.stat().st_mode
    except OSError as error:
        raise ConfigError(f"the token of Ray {token_file}: {error.strerror}") from None
    if len(token) < _LEAST_TOKEN_BYTES or mode & 0o077:
        raise ConfigError(f"the token of Ray {token_file}: 32 bytes or more, readable by its owner alone (mode 0600)")
    os.environ.update(RAY_ENVIRONMENT | (LOOPBACK_ENVIRONMENT if alone else {}) | {TOKEN_PATH: str(token_file)})
