"""Every GPU kernel compiled for sm_90, on any machine: Triton brings its own ptxas.

    python -m benchmarks.kernels.gpu_compile [KERNEL ...]     # names or their beginnings; default: all

Compiles what has changed since the committed table, on both versions of Triton, and writes the table
(benchmarks/results/sm90/kernels_gpu_compile.json). With names it prints their rows and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "results/sm90/kernels_gpu_compile.json"
VERSION_SECONDS = 3600


def compile_here(out: Path, kernels: list[str], *, small: bool, fresh: bool) -> int:
    """Compile with the Triton of this process and write the rows to `out`. 1 when a kernel spills."""
    from benchmarks.kernels.compiled import table  # imports Triton

    known = [] if fresh or kernels else rows_of(FILE) + rows_of(out)
    rows: list[dict[str, Any]] = []
    try:
        rows.extend(table.compiled(table.current(small=small, kernels=kernels), known))
    finally:
        write(out, rows)  # a variant that does not compile leaves the others' rows
    return int(any(row["spills"] for row in rows))


def print_stale() -> int:
    """Print the kernels that the committed table lacks. 1 when there are any."""
    from benchmarks.kernels.compiled import table
    from tests import triton_setup

    missing = table.stale(rows_of(FILE), triton_setup.VERSIONS)
    print("\n".join(missing))
    return int(bool(missing))


def compile_with(version: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Return the rows of one version of Triton, compiled in a process of its own. Raises CalledProcessError."""
    from tests import triton_setup

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.kernels.gpu_compile", "--here", str(out), *arguments]
        environment = triton_setup.environment(version, interpret=False)
        done = subprocess.run(command, env=environment, timeout=VERSION_SECONDS, check=False)
        if not out.exists():
            raise subprocess.CalledProcessError(done.returncode, command)
        return rows_of(out)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return a table's rows, none where the file is missing."""
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return rows


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows, one a line, in an order that does not depend on the run."""
    ordered = sorted(rows, key=lambda row: (row["triton"], row["kernel"], str(row["uses"]), row["digest"]))
    lines = ",\n".join(f"  {json.dumps(row)}" for row in ordered)
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """0 when no kernel spills, 1 when one does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.gpu_compile", description=__doc__)
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
