"""The GPU kernels and the GPU runner, on every supported Triton: interpreted here, for real where CUDA is present."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import triton_setup

ROOT = Path(__file__).parents[3]
KERNELS = ("tests.serving.kernels.triton_cases", "tests.serving.kernels.sample_cases")
SCALED, GROUPED = "tests.serving.kernels.scaled_cases", "tests.serving.kernels.grouped_cases"
# What is recorded and in which order things are launched is the host's, and does not depend on the version.
RUNNERS = ("tests.serving.runner.gpu_cases", "tests.serving.runner.overlap_cases")
CASES = [(version, program) for version in triton_setup.VERSIONS for program in KERNELS]
# Interpreted alone: real ranks need a GPU each.
RANKS = "tests.serving.parallel.gpu_cases"
CASES += [("3.6.0", program) for program in (SCALED, GROUPED, *RUNNERS, RANKS)]


def run(program: str, environment: dict[str, str] | None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("ok ") >= (1 if program == RANKS else 2)


@pytest.mark.deep
@pytest.mark.parametrize(("version", "program"), CASES)
def test_interpreted_kernels_and_runner_equal_plain_torch(version: str, program: str) -> None:
    run(program, triton_setup.environment(version, interpret=True))


def test_one_case_for_each_kernel_equals_plain_torch() -> None:
    run("tests.serving.kernels.quick_cases", triton_setup.environment(triton_setup.NEWEST, interpret=True))


@pytest.mark.deep
def test_a_step_replays_one_graph_and_compiles_nothing_after_the_warm_up() -> None:
    run("tests.serving.runner.host_cases", triton_setup.environment("3.6.0", interpret=False))


@pytest.mark.gpu
@pytest.mark.parametrize("program", [*KERNELS, SCALED, GROUPED, *RUNNERS])
def test_kernels_and_runner_equal_plain_torch_on_the_gpu(program: str) -> None:
    run(program, None)
