"""The GPU kernels compiled for Hopper at Llama-3-8B's sites: no GPU is needed for that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import triton_setup

ROOT = Path(__file__).parents[2]
# Three slices, one, and two: the tensor-core tile has 64, 16 and 32 ranks.
SITES = ("qkv:bf16", "o:bf16", "gate_up:fp8e4nv")


@pytest.mark.slow
@pytest.mark.parametrize("version", triton_setup.VERSIONS)
def test_no_kernel_spills_on_sm90_and_every_one_loads_16_bytes_at_once(version: str, tmp_path: Path) -> None:
    out = tmp_path / "compiled.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels.gpu_compile", "--out", str(out), *SITES],
        cwd=ROOT,
        env=triton_setup.environment(version, interpret=False),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert out.exists(), done.stderr[-4000:]
    kernels = json.loads(out.read_text())
    assert len(kernels) == 19 and {kernel["triton"] for kernel in kernels} == {version}
    for kernel in kernels:
        assert kernel["spills"] == 0, kernel
        assert kernel["registers"] <= 255, kernel
        assert kernel["dependent_launch"], kernel
        if kernel["kernel"] == "embed":  # one column of A a rank: nothing to load widely
            continue
        assert kernel["wide"] > 0 and kernel["mma"], kernel
        if "shrink" in kernel["kernel"]:
            assert kernel["async_copies"] > 0, kernel
    for name, site in {(kernel["kernel"], kernel["site"]) for kernel in kernels}:
        instructions = {kernel["mma"] for kernel in kernels if (kernel["kernel"], kernel["site"]) == (name, site)}
        assert len(instructions) == 1, f"{name}: tiles of 16 and of 64 rows must be added by one kind of instruction"
