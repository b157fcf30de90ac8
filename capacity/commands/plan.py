"""Plan a fleet: how many accelerators, which, at what load, for how much, in 13 steps."""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path

import msgspec

from capacity import operating
from capacity.catalogue import read_catalogue, read_prices
from capacity.charts import standalone
from capacity.commands.forecast import add_events, read_events
from capacity.commands.output import emit, say, write
from capacity.errors import PlanRefused
from capacity.operating import Effort
from capacity.page import html
from capacity.plan import Inputs, plan
from capacity.profile import Profile, current_commit, read_profile, warnings_of
from capacity.report import document, markdown
from capacity.terms import read_terms
from capacity.usage import read_usage

_SHIPPED = Path(__file__).parent.parent / "accelerators.toml"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--usage", type=Path, required=True, help="the platform's usage file")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="ACCELERATOR=FILE",
        help="what `calibrate` wrote on an accelerator; once for each base and accelerator",
    )
    parser.add_argument("--prices", type=Path, required=True, help="TOML (docs/capacity.md)")
    parser.add_argument("--promises", type=Path, required=True, help="TOML: promises and terms")
    parser.add_argument(
        "--catalogue", type=Path, default=_SHIPPED, help="TOML: accelerators; by default the shipped ones"
    )
    parser.add_argument("--today", type=datetime.date.fromisoformat, default=None, help="the plan's day, else today")
    parser.add_argument("--requests", type=int, default=operating.LEAST_REQUESTS, help="simulated for each rate")
    parser.add_argument("--seeds", type=int, default=operating.LEAST_SEEDS)
    parser.add_argument("--seed", type=int, default=1, help="the first of the seeds")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes that simulate")
    parser.add_argument(
        "--out", type=Path, help="folder for plan.html, plan.md, plan.json, targets.json and the pictures"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_events(parser)


def run(options: argparse.Namespace) -> int:
    """Make a plan, write it, print it."""
    usage = read_usage(options.usage)
    catalogue = read_catalogue(options.catalogue)
    profiles: dict[str, dict[str, Profile]] = {}
    warnings: list[str] = []
    commit = current_commit()
    for text in options.profile:
        accelerator, _, path = text.partition("=")
        if not accelerator or not path:
            raise PlanRefused(8, f"--profile {text}: as ACCELERATOR=FILE, such as l4=profile.json")
        profile = read_profile(Path(path))
        profiles.setdefault(profile.model.fingerprint, {})[accelerator] = profile
        warnings += warnings_of(profile, commit=commit or None)
    made = plan(
        Inputs(
            usage,
            profiles,
            catalogue,
            read_prices(options.prices, catalogue),
            read_terms(options.promises),
            options.today or datetime.datetime.now(datetime.UTC).date(),
            read_events(options.event),
            Effort(options.seeds, options.requests, options.seed),
            commit,
            max(1, min(64, options.workers)),
        ),
        operating.quiet if options.quiet else say,
    )
    found = document(made)
    found["warnings"] = list(dict.fromkeys([*warnings, *found["warnings"]]))
    if options.out is not None:
        write(options.out / "plan.json", msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=1))
        write(options.out / "targets.json", msgspec.json.format(msgspec.json.encode(found["targets"]), indent=1))
        write(options.out / "plan.md", markdown(found))
        write(options.out / "plan.html", html(found))
        for figure in found["figures"]:
            write(options.out / f"{figure['name']}.svg", standalone(figure["svg"]))
        if not options.quiet:
            pictures = len(found["figures"])
            say(f"written to {options.out}: plan.html, plan.md, plan.json, targets.json, {pictures} pictures")
    emit(found, markdown(found), as_json=options.json)
    return 0
