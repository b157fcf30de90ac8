"""The first run on a GPU: correctness, figures, sweep, profile, and one table of predicted beside measured times.

Ends with 0 when every stage was right, 1 when one was not, and 2 where nothing can be measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import preflight, records, table
from benchmarks.gpu.stages import Outcome, run_stages, stages_of

USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run, or only predict. Returns the exit status."""
    options = _parser().parse_args(argv)
    if options.predict:
        print("Predicted, not measured. Llama-3-8B, bfloat16, 32 rows of context 512, 32 adapters of rank 16.\n")
        print(table.predicted_page())
        return 0
    found = preflight.look()
    for name, value in found.lines():
        print(f"{name:22} {value}")
    problem = f"these packages are missing: {', '.join(found.missing)}" if found.missing else ""
    if found.cuda is None:
        problem = problem or f"no CUDA device: {found.cuda_reason}"
    if problem or options.out is None:
        print(f"\nerror: {problem or 'name a folder with --out'}; nothing was measured.", file=sys.stderr)
        print("Predictions alone: python -m benchmarks.gpu --predict", file=sys.stderr)
        return USAGE_ERROR
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    about = found.as_dict()
    records.write_whole(out / "preflight.json", json.dumps(about, indent=1) + "\n")
    folders = [*options.earlier, out]

    def summarise(outcomes: Sequence[Outcome]) -> str:
        return table.summary(folders, about, outcomes, options.minutes)

    outcomes = run_stages(stages_of(options.stages), out, 60 * options.minutes, summarise)
    print("\n" + summarise(outcomes))
    return int(any(outcome.status != "ok" for outcome in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results: at most 8 files of 15 MiB")
    parser.add_argument("--minutes", type=float, default=25, help="for everything together")
    parser.add_argument(
        "--stages",
        type=_groups,
        default=table.GROUPS,
        metavar="GROUPS",
        help=f"some of {','.join(table.GROUPS)}, where one command may not run for 25 minutes",
    )
    parser.add_argument(
        "--earlier", type=Path, action="append", default=[], metavar="DIR", help="results of an earlier part of the run"
    )
    parser.add_argument("--predict", action="store_true", help="print the predictions alone; needs no GPU")
    return parser


def _groups(text: str) -> tuple[str, ...]:
    groups = tuple(text.split(","))
    if unknown := set(groups) - set(table.GROUPS):
        raise argparse.ArgumentTypeError(f"no such stages: {', '.join(sorted(unknown))}")
    return groups


if __name__ == "__main__":
    sys.exit(main())
