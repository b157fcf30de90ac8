"""LiteLLM's proxy before the same stub replica, as many processes as we have gateways.

It keeps no spend here: its database client needs an engine that is downloaded from binaries.prisma.sh, which is no
package. So it does less than our gateway: it authenticates one key, counts tokens and computes the cost in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gateway.platform import Platform, answers, cpu_of_tree
from devstack.state import free_port

KEY = "sk-benchmark"
MODEL = "thing"


@dataclass(frozen=True)
class Proxy:
    """The running proxies."""

    ports: list[int]
    pids: list[int]
    version: str

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes so far."""
        return sum(map(cpu_of_tree, self.pids))


@contextlib.contextmanager
def litellm(program: Path, running: Platform, *, processes: int) -> Iterator[Proxy]:
    """Start proxies of `program` (its `litellm` command) for the platform's replica, and stop them in the end."""
    settings = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": "openai/stub",
                    "api_base": f"http://127.0.0.1:{running.replica_port}/v1",
                    "api_key": "none",
                    "input_cost_per_token": 1e-6,
                    "output_cost_per_token": 3e-6,
                },
            }
        ],
        "general_settings": {"master_key": KEY},
    }
    file = running.root / "litellm.yaml"
    file.write_text(json.dumps(settings))  # JSON is YAML
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(running.root),
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no download at start
    }
    proxy = Proxy([], [], _version(program))
    try:
        for number in range(processes):
            port = free_port()
            command = [str(program), f"--config={file}", "--host=127.0.0.1", f"--port={port}"]
            ready = partial(answers, f"http://127.0.0.1:{port}/health/liveliness")
            process = running.start(f"litellm-{number}", command, ready, env=environment, cwd=running.root)
            proxy.ports.append(port)
            proxy.pids.append(process.pid)
        yield proxy
    finally:
        for number in range(len(proxy.pids)):
            running.stop(f"litellm-{number}")


def _version(program: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('litellm'))"
    done = subprocess.run([program.parent / "python", "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout.strip()
