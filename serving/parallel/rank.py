"""`python -m serving.parallel.rank PARENT PLANS LOADS MEMORY`: one rank of a replica, started by its rank 0 alone.

It has no keys, no tickets and no network of its own to use but the ranks' collectives on this machine; prompts and
adapters reach it as token ids and numbers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, plans: int, loads: int, places: int) -> int:
    """Serve rank 0 until it says stop or ends. Returns the exit code."""
    # The replica ends its ranks: a signal to the whole group drains rank 0 first, which needs them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    # Imported late: the lines above come before anything that takes time.
    from sealed_weights.process import keep_memory_private

    keep_memory_private()
    from serving import logs
    from serving.parallel.follower import follow

    logs.configure()
    return follow(plans, loads, places)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
