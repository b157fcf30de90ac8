"""`python -m tests.mutations`: see the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests import services
from tests.mutations.faults import ALL, Fault
from tests.mutations.trial import Copy, Verdict

LEAST_CAUGHT = 0.9


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description="Plant faults and see who notices.")
    parser.add_argument("--list", action="store_true", help="name the faults and plant none")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="faults whose name or file contains one of these")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="how many at a time")
    parser.add_argument("--near", action="store_true", help="run the nearest tests alone: a quick first look")
    arguments = parser.parse_args()
    chosen = [fault for fault in ALL if not arguments.only or _is_named(fault, arguments.only)]
    if arguments.list:
        for fault in chosen:
            print(f"{fault.file:44} {fault.name}")
        return 0
    if services.MISSING or not chosen:
        print(f"missing: {', '.join(services.MISSING)}" if services.MISSING else "no fault has such a name")
        return 1
    verdicts = _try_all(chosen, at_once=arguments.j, near=arguments.near)
    caught = sum(verdict.word == "caught" for verdict in verdicts)
    print(f"\n{caught} of {len(verdicts)} caught")
    for verdict in verdicts:
        print(f"  {verdict.word:9} {verdict.fault.file:44} {verdict.fault.name}")
    return 0 if caught >= LEAST_CAUGHT * len(verdicts) and not any(verdict.error for verdict in verdicts) else 1


def _is_named(fault: Fault, names: Sequence[str]) -> bool:
    return any(name in fault.name or name in fault.file for name in names)


def _try_all(faults: Sequence[Fault], *, at_once: int, near: bool) -> list[Verdict]:
    with tempfile.TemporaryDirectory(prefix="intarsia-mutations-") as root, ThreadPoolExecutor(at_once) as threads:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(at_once):
            copies.put(Copy(Path(root, str(number)), number + 1, near=near))

        def try_one(fault: Fault) -> Verdict:
            copy = copies.get()
            try:
                verdict = copy.try_fault(fault)
            finally:
                copies.put(copy)
            by = verdict.error or verdict.by or ", ".join(fault.tests)
            print(f"{verdict.word:9} {verdict.seconds:5.0f} s  {fault.file}: {fault.name}\n{'':19}{by}", flush=True)
            return verdict

        return list(threads.map(try_one, faults))


if __name__ == "__main__":
    sys.exit(main())
