"""Plans of a fleet, from the command line.

python -m capacity calibrate --model FOLDER | --url URL [--out profile.json]
python -m capacity curve --profile profile.json --workload workload.toml [--replicas 1,2,4]
python -m capacity plan --usage usage.json --profile l4=profile.json --prices prices.toml --promises promises.toml
python -m capacity forecast --usage usage.json
python -m capacity check --profile profile.json --workload workload.toml --model FOLDER | --url URL
python -m capacity review plan.json --usage usage.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from capacity.commands import calibrate, check, curve, forecast, plan, review
from capacity.errors import PlanRefused

Command = Callable[[argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns 0, 1 where a check fails, 2 for a refusal."""
    parser = argparse.ArgumentParser(prog="python -m capacity", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (calibrate, curve, plan, forecast, check, review):
        name = module.__name__.rpartition(".")[2]
        sub = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0], description=module.__doc__)
        module.add_flags(sub)
        sub.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    run: Command = options.run
    try:
        return run(options)
    except PlanRefused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
