"""The GPU kernels and the GPU runner, on every supported Triton: interpreted here, for real where CUDA is present."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import triton_setup

ROOT = Path(__file__).parents[3]
KERNELS = ("tests.serving.kernels.triton_cases", "tests.serving.runner.gpu_cases")
# The order of launches and answers is the host's, and does not depend on the version.
OVERLAP = "tests.serving.runner.overlap_cases"
CASES = [(version, program) for version in triton_setup.VERSIONS for program in KERNELS] + [("3.6.0", OVERLAP)]


def run(program: str, environment: dict[str, str] | None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("ok ") >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("version", "program"), CASES)
def test_interpreted_kernels_and_runner_equal_plain_torch(version: str, program: str) -> None:
    run(program, triton_setup.environment(version, interpret=True))


@pytest.mark.gpu
@pytest.mark.parametrize("program", [*KERNELS, OVERLAP])
def test_kernels_and_runner_equal_plain_torch_on_the_gpu(program: str) -> None:
    run(program, None)
