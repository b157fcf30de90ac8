"""The Triton kernels under Triton's interpreter, on a CPU. Collected only where triton is installed (conftest.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_triton_kernels_equal_the_reference_under_the_interpreter(dtype: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.lora_kernels.triton_cases", dtype],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
