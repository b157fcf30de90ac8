"""Rules that the formatters cannot check."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
LINE_LENGTH = 120


def test_no_line_of_a_template_a_style_sheet_or_a_script_is_longer_than_the_limit() -> None:
    static = REPOSITORY / "marketplace" / "web" / "static"
    files = [*(REPOSITORY / "templates").rglob("*.html"), *(path for path in static.rglob("*") if path.is_file())]
    assert len(files) > 50
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= LINE_LENGTH, f"{path.relative_to(REPOSITORY)}:{number} has {len(line)} characters"


def test_the_formatter_is_seldom_switched_off() -> None:
    mark = "# fmt: " + "skip"
    folders = [folder for folder in REPOSITORY.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for folder in folders
        for path in folder.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if mark in line
    ]
    assert len(found) < 20, found
