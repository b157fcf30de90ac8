"""Stage: what the device did in attention, shrink and expand: DRAM throughput and issue slots where Nsight Compute may
count, else durations, registers and occupancy as CUPTI gives them through torch.profiler.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu import records
from benchmarks.gpu.limits import standard_step
from benchmarks.gpu.model import llama_3_8b
from benchmarks.gpu.stages import SECONDS
from benchmarks.gpu.timing import Cuda

if TYPE_CHECKING:
    from benchmarks.gpu.layer import Timed

GROUPS = ("LoRA", "attention of tokens")
NAMES = "attend|combine|shrink|expand"
LAYERS = 4
METRICS = {
    "gpu__time_duration.sum": "ns",
    "dram__bytes.sum": "dram_bytes",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_percent",
    "smsp__inst_executed.sum": "instructions",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "launch__registers_per_thread": "registers",
    "launch__shared_mem_per_block": "shared_bytes",
}
FIELDS = {
    "registers per thread": "registers",
    "shared memory": "shared_bytes",
    "est. achieved occupancy %": "occupancy_percent",
    "blocks per SM": "blocks_per_processor",
    "grid": "grid",
    "block": "block",
}


def targets() -> Iterator[Timed]:
    """Yield the kernels that are profiled."""
    # Imported late: what reads counters and traces needs no Triton.
    from benchmarks.gpu.layer import kernels

    for group, make in kernels(llama_3_8b(LAYERS), Cuda(), standard_step(), ()):
        if group in GROUPS:
            yield from make()


def run_targets() -> None:
    """Run each kernel in every layer, twice: the second time everything is compiled."""
    with torch.inference_mode():
        for one in targets():
            for _ in range(2):
                for layer in range(min(LAYERS, one.layers)):
                    one.call(layer)
            torch.cuda.synchronize()


def counted(text: str) -> Iterator[dict[str, Any]]:
    """Yield a record per launch from Nsight Compute's CSV, whose first lines may be the program's own output."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(lines[start:]):
        name = METRICS.get(row.get("Metric Name") or "")
        if name is None:
            continue
        launch = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
        try:
            launch[name] = float((row["Metric Value"] or "").replace(",", ""))
        except ValueError:
            launch[name] = row["Metric Value"]
    yield from launches.values()


def traced(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a record per launch from the events of a trace of torch.profiler."""
    for event in events:
        if event.get("cat") == "kernel" and re.search(NAMES, str(event.get("name"))):
            arguments = event.get("args", {})
            found = {ours: arguments[theirs] for theirs, ours in FIELDS.items() if theirs in arguments}
            yield {"kernel": event["name"], "ns": 1e3 * float(event.get("dur", 0)), **found}


def with_nsight(seconds: float) -> list[dict[str, Any]]:
    """Return the counters of each launch; an empty list where they may not be read."""
    if shutil.which("ncu") is None:
        return []
    command = ["ncu", "--csv", "--metrics", ",".join(METRICS), "--kernel-name", f"regex:{NAMES}"]
    command += ["--launch-count", "96", sys.executable, "-m", "benchmarks.gpu.profile", "targets"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        print("Nsight Compute did not end in time")
        return []
    found = list(counted(done.stdout))
    if not found:  # most often: counters are reserved for administrators
        print(f"Nsight Compute counted nothing: {(done.stdout + done.stderr)[-500:]}")
    return found


def with_cupti() -> list[dict[str, Any]]:
    """Return durations and launch sizes of each launch."""
    from torch.profiler import ProfilerActivity, profile

    run_targets()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        run_targets()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return list(traced(json.loads(file.read_text()).get("traceEvents", [])))


def main() -> int:
    """Return 1 when nothing could be profiled."""
    if sys.argv[1:] == ["targets"]:
        run_targets()
        return 0
    found = with_nsight(0.6 * float(os.environ.get(SECONDS, "240")))
    source = "Nsight Compute"
    if not found:
        found, source = with_cupti(), "torch.profiler"
    for record in found:
        records.emit({"record": "profile", "source": source, **record})
    return int(not found)


if __name__ == "__main__":
    sys.exit(main())
