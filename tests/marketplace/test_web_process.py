"""The web process stays light: no torch, nothing that first requests may load as well, quick to start."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from devstack.state import REPOSITORY

PROGRAM = """
import json, resource, sys
import marketplace.config.asgi
from django.urls import get_resolver
get_resolver().url_patterns  # imports every view
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss: that one remembers the process this one was forked from.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"seconds": used.ru_utime + used.ru_stime, "megabytes": peak / 1024,
                  "heavy": sorted({"torch", "transformers", "serving", "triton", "reportlab", "PIL", "stripe", "httpx",
                                   "rich", "presidio_analyzer", "spacy", "phonenumbers"} & set(sys.modules))}))
"""


MOST_SECONDS, MOST_STARTS = 3, 6


def test_the_web_process_imports_no_torch_and_starts_in_three_seconds_of_processor_time() -> None:
    # Neighbours on the same cores make the same start up to twice as dear, never cheaper: the cheapest one counts.
    starts = [_start()]
    while starts[-1]["seconds"] >= MOST_SECONDS and len(starts) < MOST_STARTS:
        starts.append(_start())
    assert min(start["seconds"] for start in starts) < MOST_SECONDS
    assert all(start["heavy"] == [] and start["megabytes"] < 200 for start in starts)


def _start() -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)
