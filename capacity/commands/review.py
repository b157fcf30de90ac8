"""Compare last month's plan with what happened since."""

from __future__ import annotations

import argparse
from pathlib import Path

from capacity import review
from capacity.commands.output import add_output_flags, emit
from capacity.usage import read_usage


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("plan", type=Path, help="plan.json, as `plan` wrote it")
    parser.add_argument("--usage", type=Path, required=True, help="the platform's usage file of today")
    add_output_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Print the comparison. Returns 1 where the plan did not hold."""
    plan = review.read_plan(options.plan)
    found = review.document(plan, review.review(plan, read_usage(options.usage)))
    emit(found, review.markdown(found), as_json=options.json)
    return 0 if found["held"] else 1
