"""`python -m serving.fleet.drain_node`: before this node of Ray stops, its replicas start elsewhere and finish here.

Kubernetes runs it as `preStop` (deploy/rayservice.yaml): at SIGTERM Ray itself would end every replica at once.
"""

from __future__ import annotations

import argparse
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

from serving import logs
from serving.fleet.slots import held_slots

log = logging.getLogger(__name__)

DRAIN_SECONDS = 150.0  # more than `drain_seconds` of any pool here, and its end
_LOOK_SECONDS = 0.5


def drain(state_dir: Path, seconds: float) -> bool:
    """Tell Ray that this node ends, wait until no replica holds a slot here; return whether that was in time."""
    import ray

    deadline = time.monotonic() + seconds
    ray.init(address="auto", log_to_driver=False, ignore_reinit_error=True)
    node = ray.get_runtime_context().get_node_id()
    ray.shutdown()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of which Ray has made an abort after three seconds
    command = [str(Path(sys.executable).with_name("ray")), "drain-node", f"--node-id={node}"]
    command += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=this node stops"]
    told = subprocess.run([*command, f"--deadline-remaining-seconds={round(seconds)}"], capture_output=True, text=True)
    if told.returncode:
        log.error("Ray does not drain this node: %s", (told.stderr or told.stdout)[-500:])
        return False
    while held := held_slots(state_dir):
        if time.monotonic() > deadline:
            log.error("still running when the node ends: %s", ", ".join(map(str, held)))
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when the node is empty, else 1: it will be stopped all the same."""
    parser = argparse.ArgumentParser(prog="python -m serving.fleet.drain_node", description="Empty this node.")
    parser.add_argument("--state-dir", type=Path, required=True, help="state_dir of the pools on this node")
    parser.add_argument("--seconds", type=float, default=DRAIN_SECONDS, help="until the node ends in any case")
    arguments = parser.parse_args(argv)
    logs.configure()
    return 0 if drain(arguments.state_dir, arguments.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
