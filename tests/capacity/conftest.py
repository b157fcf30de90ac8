"""One plan for all tests that read one."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capacity.__main__ import main
from tests.capacity.plan_files import plan_flags, write_files


@dataclass(frozen=True)
class Planned:
    """What the command made of `files`: the page it printed, the folder it wrote, and the plan in there."""

    files: Path
    out: Path
    page: str
    document: dict[str, Any]


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    files = write_files(tmp_path_factory.mktemp("plan"))
    out, printed = files / "out", io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(plan_flags(files, "--out", str(out))) == 0
    return Planned(files, out, printed.getvalue(), json.loads((out / "plan.json").read_text()))
