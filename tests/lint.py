"""Rules that the formatters cannot check: `python -m tests.lint`, a part of `make lint`.

No line of a template, a style sheet or a script is longer than a line of Python may be, and the formatter is seldom
switched off. What breaks a rule is printed with its place; the exit status is 1 then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
LINE_LENGTH = 120
SKIP = "# fmt: " + "skip"
MOST_SKIPS = 19


def long_lines() -> Iterator[str]:
    """Yield each line of the site's files that is too long, as `file:line: what is wrong`."""
    static = REPOSITORY / "marketplace" / "web" / "static"
    files = [*(REPOSITORY / "templates").rglob("*.html"), *(path for path in static.rglob("*") if path.is_file())]
    if len(files) <= 50:
        yield f"{REPOSITORY}: the site's files are not where they were: {len(files)} found"
    for path in files:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if len(line) > LINE_LENGTH:
                yield f"{path.relative_to(REPOSITORY)}:{number}: {len(line)} characters, {LINE_LENGTH} are allowed"


def skips() -> Iterator[str]:
    """Yield each place where the formatter is switched off, if there are too many."""
    folders = [folder for folder in REPOSITORY.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: the formatter is switched off"
        for folder in folders
        for path in folder.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if SKIP in line
    ]
    if len(found) > MOST_SKIPS:
        yield from found
        yield f"that is {len(found)} places, {MOST_SKIPS} are allowed"


def main() -> int:
    wrong = [*long_lines(), *skips()]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
