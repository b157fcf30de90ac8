"""The Triton kernels under Triton's interpreter, on a CPU, on each version the package supports."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests import triton_setup
from tests.lora_kernels.pairwise import pairwise

ROOT = Path(__file__).parents[2]


def run_interpreted(version: str, module: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.lora_kernels.{module}", *arguments],
        cwd=ROOT,
        env=triton_setup.environment(version, interpret=True),
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.deep
@pytest.mark.parametrize("version", triton_setup.VERSIONS)
def test_every_pair_of_factors_of_the_matrix_equals_the_reference(version: str) -> None:
    run_interpreted(version, "triton_matrix")


@pytest.mark.deep
@pytest.mark.parametrize("version", triton_setup.VERSIONS)
def test_planes_embeddings_fp8_and_partial_adapters_equal_the_reference(version: str) -> None:
    run_interpreted(version, "triton_cases")


def test_a_few_cases_of_the_matrix_and_an_embedding_equal_the_reference() -> None:
    run_interpreted(triton_setup.NEWEST, "triton_matrix", "few")


@pytest.mark.deep
def test_the_gpu_benchmark_plans_checks_and_reports_without_a_gpu() -> None:
    run_interpreted(triton_setup.NEWEST, "triton_benchmark")


def test_pairwise_cases_cover_all_pairs_that_are_allowed() -> None:
    factors = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (1, 2), "d": ("x", "y")}

    def allowed(case: dict[str, object]) -> bool:
        return not (case.get("a") == 3 and case.get("b") == 3)

    cases = pairwise(factors, allowed)
    assert len(cases) < 14 and all(map(allowed, cases))
    for first, second in itertools.combinations(factors, 2):
        seen = {(case[first], case[second]) for case in cases}
        wanted = set(itertools.product(factors[first], factors[second]))
        assert seen == wanted - ({(3, 3)} if (first, second) == ("a", "b") else set())
