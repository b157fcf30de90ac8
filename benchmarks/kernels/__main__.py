"""`python -m benchmarks.kernels [--quick]`: the CPU grid, and the GPU one where there is CUDA."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.kernels import cpu, plot, report
from benchmarks.kernels.grid import DTYPES, points
from benchmarks.kernels.limits import measure_limits

VLLM_OPS = "VLLM_LORA_OPS"


def main(arguments: list[str] | None = None) -> int:
    """0 when every promised figure holds, 1 when one does not."""
    options = _parser().parse_args(arguments)
    gpu = _gpu_status(options) if options.device != "cpu" else 0
    return max(gpu, _cpu_status(options) if options.device != "gpu" else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a seventh of the grid")
    parser.add_argument("--device", choices=("all", "cpu", "gpu"), default="all", help="gpu runs where CUDA is present")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: torch's)")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="one type only; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=1800, metavar="SECONDS", help="start no CPU point after that")
    parser.add_argument("--resume", action="store_true", help="keep the points of an earlier results file")
    parser.add_argument("--out", type=Path, help="folder of the results (default: one for this kind of machine)")
    parser.add_argument(
        "--vllm-ops",
        type=Path,
        default=os.environ.get(VLLM_OPS),
        metavar="FILE",
        help=f"vllm/lora/ops/torch_ops/lora_ops.py of an installed or unzipped vLLM wheel (default: ${VLLM_OPS})",
    )
    return parser


def _gpu_status(options: argparse.Namespace) -> int:
    """Hand over to benchmarks.kernels.gpu, which returns main's status."""
    if not torch.cuda.is_available():
        print("GPU: no CUDA here, not measured")
        return 0
    if importlib.util.find_spec("benchmarks.kernels.gpu") is None:
        print("GPU: not measured, benchmarks.kernels.gpu is missing")
        return 0
    from benchmarks.kernels import gpu

    return int(gpu.run(quick=options.quick, seed=options.seed, out=options.out))


def _cpu_status(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    out = options.out or machine.RESULTS / machine.cpu_kind()
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"kernels_cpu{'_quick' if options.quick else ''}.json"
    results = report.read_json(file) if options.resume and file.exists() else []
    done = {result.point for result in results}
    wanted = [point for point in points(options.quick, tuple(options.dtype or DTYPES)) if point not in done]
    if options.vllm_ops is None:
        print(f"vllm_cpu: not measured, --vllm-ops or ${VLLM_OPS} is not set")
    about: dict[str, object] = {"machine": machine.describe(), "seed": options.seed}
    limits = measure_limits()
    about["limits"] = asdict(limits)
    deadline = time.monotonic() + options.budget
    print(report.HEADER)
    for result in cpu.measure(wanted, seed=options.seed, limits=limits, vllm_ops=options.vllm_ops, deadline=deadline):
        results.append(result)
        print(report.row(result), flush=True)
        for name, reason in result.skipped.items():
            print(f"  {name}: {reason}")
    if not results:
        print("nothing measured: the budget was over before the first point")
        return 1
    report.write_json(file, results, about)
    print(f"\n{report.aggregate_lines(results)}\n\n{file}")
    if len(done) + len(wanted) > len(results):
        print(f"{len(done) + len(wanted) - len(results)} points are left: the budget is over; go on with --resume")
    picture = file.with_suffix(".png")
    print(picture if plot.draw(results, picture) else plot.INSTALL)
    return 0 if all(one.holds for one in report.aggregates(results)) else 1


if __name__ == "__main__":
    sys.exit(main())
