"""The specification's example runs as it stands, and its layout table is the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sealed_weights.header import HEADER_SIZE, UNCOMMITTED_SIZE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "package-format.md").read_text()


def test_the_example_runs_in_an_empty_folder(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    result = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert "does not match this package" in result.stdout
    assert (tmp_path / "my-adapter.sealed").exists()


def test_the_layout_table_adds_up_to_the_header() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ", TEXT, re.MULTILINE)
    offset = 0
    for start, size in rows:
        assert int(start) == offset
        offset += int(size)
    assert offset == HEADER_SIZE
    assert offset - int(rows[-1][1]) == UNCOMMITTED_SIZE


def test_importing_the_library_loads_neither_torch_nor_django() -> None:
    code = "import sys, sealed_weights; print(sorted({'torch', 'django', 'peft', 'safetensors'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr
