"""The host's part of each step of a GPU replica, in milliseconds of one core, with launches that do nothing.

    python -m benchmarks.serving_host [--layers 32] [--rows 256] [--steps 40] [--out FOLDER]

Planner, packing, upload, metadata, replay, head, sampler and commit are those of a replica with an 8B model's layers;
every launch chooses its variant as on a GPU, every replay returns at once. Rows are narrow, so that torch's own work on
a CPU does not count. Time is that of the engine's thread, which other processes do not lengthen by their turns. Triton
must be importable, or installed by `python -m tests.triton_setup`.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ADAPTERS = 32
CONTEXTS = (512, 4096, 32768)
MOST_ROWS = 512
# Milliseconds of a step.
BARS = {"decode": 1.0, "mixed": 3.0}


def mixes(rows: int) -> dict[str, dict[str, int]]:
    """Return the arguments of each `steps.Mix` by its name; those of decodes alone begin with "decode"."""
    found = {}
    for adapters in (0, ADAPTERS):
        beside = f", {adapters} adapters" if adapters else ""
        for context in CONTEXTS:
            found[f"decode, context {context}{beside}"] = {"decodes": rows, "context": context, "adapters": adapters}
        for prompts in (1, 8, 32):
            found[f"mixed, {prompts} prompts{beside}"] = {
                "decodes": rows // 2,
                "context": 512,
                "adapters": adapters,
                "prompts": prompts,
                "prompt": rows // 2 // prompts,
            }
    return found


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row for each mix: its name, its launches, milliseconds of a step and of each part."""
    import torch

    from benchmarks.serving_host.device import device
    from benchmarks.serving_host.replica import BLOCK, make_engine
    from benchmarks.serving_host.steps import Mix, run

    torch.set_num_threads(1)
    max_len = max(CONTEXTS) + 1024
    rows = []
    with torch.inference_mode(), device() as here:
        print(f"recording graphs of {options.layers} layers …", flush=True)
        engine = make_engine(
            here,
            layers=options.layers,
            max_rows=MOST_ROWS,
            max_sequences=options.rows,
            max_len=max_len,
            adapters=ADAPTERS,
            blocks=(options.rows + 2) * max_len // BLOCK,
        )
        engine._warm_up()
        for name, arguments in mixes(options.rows).items():
            figures = run(engine, Mix(**arguments), options.steps, here)
            rows.append({"mix": name, "rows": options.rows, **figures})
            print(_line(rows[-1]), flush=True)
    return rows


def misses(rows: list[dict[str, Any]]) -> list[str]:
    """Return what misses its bar."""
    return [
        f"{row['mix']}: {row['step']:.2f} ms, bar {BARS[kind]}"
        for row in rows
        if row["step"] > BARS[kind := row["mix"].split(",")[0]]
    ]


def _line(row: Mapping[str, Any]) -> str:
    parts = "  ".join(f"{part} {row[part]:.2f}" for part in ("plan", "launch", "commit", "deliver"))
    return f"{row['mix']:36} {row['step']:6.2f} ms   {parts}   {row['launches']:.0f} launches"


def main() -> int:
    """Return 0 when every bar holds, 1 when one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rows", type=int, default=256, help="of a step")
    parser.add_argument("--steps", type=int, default=40, help="of each mix")
    parser.add_argument(
        "--out", type=Path, help="folder for serving_host.json; default: results/<kind of this machine>"
    )
    options = parser.parse_args()
    if importlib.util.find_spec("triton") is None:
        return _again_with_triton()
    from benchmarks import machine

    about = machine.describe()
    rows = measure(options)
    folder = options.out or machine.RESULTS / machine.cpu_kind(about)
    print(machine.write_suite(folder, "serving_host", {"machine": about, "layers": options.layers, "rows": rows}))
    missed = misses(rows)
    print("\n".join(missed) or "every bar holds")
    return int(bool(missed))


def _again_with_triton() -> int:
    from tests import triton_setup

    environment = triton_setup.environment(next(reversed(triton_setup.VERSIONS)), interpret=False)
    command = [sys.executable, "-m", "benchmarks.serving_host", *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
