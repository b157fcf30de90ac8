"""Every GPU kernel compiled for sm_90, on any machine: Triton brings its own ptxas.

    python -m benchmarks.gpu.compile [KERNEL ...]     # names or their beginnings; default: all

Compiles what has changed since the committed table, on both versions of Triton, and writes the table
(benchmarks/results/sm90/gpu_compile.json). With names it prints their rows and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.machine import table
from capacity.profile import current_commit

FILE = Path(__file__).parents[2] / "results/sm90/gpu_compile.json"
VERSION_SECONDS = 3600
# The file keeps this of a compiled kernel beside Triton's version, its name and its types.
FIELDS = (
    *("digest", "tile", "registers", "spills", "spill_bytes", "shared", "instructions", "buffers", "per_4k_of_b"),
    *("async_copies", "dependent_launch"),
)


def compile_here(out: Path, kernels: list[str], *, small: bool, fresh: bool) -> int:
    """Compile with the Triton of this process and write the rows to `out`. 1 when a kernel spills."""
    from benchmarks.gpu.compile import table as compiled  # imports Triton

    known = [] if fresh or kernels else rows_of(FILE) + rows_of(out)
    rows: list[dict[str, Any]] = []
    try:
        rows.extend(compiled.compiled(compiled.current(small=small, kernels=kernels), known))
    finally:
        write(out, rows)  # a variant that does not compile leaves the others' rows
    return int(any(row["spills"] for row in rows))


def print_stale() -> int:
    """Print the kernels that the committed table lacks. 1 when there are any."""
    from benchmarks.gpu.compile import table as compiled
    from tests import triton_setup

    missing = compiled.stale(rows_of(FILE), triton_setup.VERSIONS)
    print("\n".join(missing))
    return int(bool(missing))


def compile_with(version: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Return the rows of one version of Triton, compiled in a process of its own. Raises CalledProcessError."""
    from tests import triton_setup

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.gpu.compile", "--here", str(out), *arguments]
        environment = triton_setup.environment(version, interpret=False)
        done = subprocess.run(command, env=environment, timeout=VERSION_SECONDS, check=False)
        if not out.exists():
            raise subprocess.CalledProcessError(done.returncode, command)
        return rows_of(out)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return a table's rows, none where the file is missing."""
    if not file.exists():
        return []
    kept = json.loads(file.read_text(encoding="utf-8"))["compiled"]
    return [
        {"triton": version, "kernel": kernel, "dtypes": dtypes, **dict(zip(FIELDS, row, strict=True))}
        for version, kernels in kept.items()
        for kernel, types in kernels.items()
        for dtypes, rows in types.items()
        for row in rows
    ]


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write a summary for readers, and all rows, one a line, in an order that does not depend on the run."""
    compiled: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: (row["triton"], row["kernel"], row["dtypes"], row["digest"])):
        types = compiled.setdefault(row["triton"], {}).setdefault(row["kernel"], {})
        types.setdefault(row["dtypes"], []).append([row[name] for name in FIELDS])
    about = {
        "date": date.today().isoformat(),
        "commit": current_commit()[:8],
        "fields": FIELDS,
        "parts": [summary(rows)],
    }
    text = json.dumps({**about, "compiled": compiled}, separators=(",", ":"))
    file.write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a table with a line for each kernel."""
    kernels: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kernels.setdefault(row["kernel"], []).append(row)
    lines = [
        [
            name,
            len(built),
            max(one["registers"] for one in built),
            sum(one["spills"] for one in built),
            f"{max(one['shared'] for one in built) / 1024:.0f}",
        ]
        for name, built in sorted(kernels.items())
    ]
    return table(["kernel", "variants", "most registers", "spills", "most shared memory, KiB"], lines)


def main(arguments: list[str] | None = None) -> int:
    """0 when no kernel spills, 1 when one does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.compile", description=__doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL")
    parser.add_argument("--here", type=Path, metavar="OUT", help="this process's Triton alone, rows written to OUT")
    parser.add_argument("--small", action="store_true", help="the variants that the tests compile")
    parser.add_argument("--fresh", action="store_true", help="compile those of the table too")
    parser.add_argument("--stale", action="store_true", help="name the kernels whose rows are not of this source")
    options = parser.parse_args(arguments)
    if options.stale:
        return print_stale()
    if options.here:
        return compile_here(options.here, options.kernels, small=options.small, fresh=options.fresh)
    from tests import triton_setup

    flags = [flag for flag, given in (("--small", options.small), ("--fresh", options.fresh)) if given]
    rows = []
    for version in triton_setup.VERSIONS:
        print(f"Triton {version}", flush=True)
        rows += compile_with(version, [*flags, *options.kernels])
    if not (options.kernels or options.small):
        write(FILE, rows)
        print(FILE)
    return int(any(row["spills"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
