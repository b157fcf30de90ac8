"""The GPU kernels compiled for Hopper: a few here, all of them in the committed table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.compile.__main__ import FILE, rows_of
from tests import triton_setup

ROOT = Path(__file__).parents[2]


@pytest.mark.deep
def test_the_kernels_that_serve_an_8b_model_compile_without_spills(tmp_path: Path) -> None:
    out = tmp_path / "compiled.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.compile", "--here", str(out), "--small", "--fresh"],
        cwd=ROOT,
        env=triton_setup.environment("3.6.0", interpret=False),
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert out.exists(), done.stderr[-4000:]
    rows = rows_of(out)
    assert {row["kernel"] for row in rows} >= {"shrink", "expand", "expand first", "embed", "add_rms_norm", "gate_mul"}
    for row in rows:
        check(row)


def test_no_kernel_of_the_committed_table_spills_in_a_16_bit_type() -> None:
    rows = rows_of(FILE)
    assert {row["triton"] for row in rows} == set(triton_setup.VERSIONS)
    for row in rows:
        check(row)


@pytest.mark.deep
def test_the_committed_table_was_made_from_these_kernels() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.compile", "--stale"],
        cwd=ROOT,
        env=triton_setup.environment("3.6.0", interpret=False),
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, (
        f"{done.stdout}{done.stderr[-2000:]}\nmake the table anew: python -m benchmarks.gpu.compile"
    )


def check(row: dict[str, Any]) -> None:
    assert row["dtypes"] == "fp32" or not (row["spills"] or row["spill_bytes"]), row
    assert row["registers"] <= 255, row
    if row["kernel"] in ("attend_splits", "attend_tiles"):
        check_attention(row)
    if row["kernel"] in ("shrink", "expand", "expand first", "embed"):
        assert row["dependent_launch"], row
    # Four KB of B are 128 columns of one page in a 16-bit type.
    if row["kernel"].startswith("expand") and set(row["dtypes"].split()) <= {"bf16", "fp16"} and row["tile"] == 16:
        assert min(row["per_4k_of_b"]) <= 150, row


def check_attention(row: dict[str, Any]) -> None:
    """K and V have two buffers each at least, filled by asynchronous copies, and float32 does not spill either.

    Copies of 8-bit values have eight bytes instead of the sixteen that a row counts.
    """
    assert row["buffers"] >= 2, row
    assert (row["async_copies"] > 0 or "fp8" in row["dtypes"]) and not row["spills"] and not row["spill_bytes"], row
    if row["kernel"] == "attend_splits":
        assert row["tile"] == 16, row
