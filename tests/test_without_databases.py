"""GPU tests start on a machine that has torch, Triton and pytest, and none of the platform's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import triton_setup

ROOT = Path(__file__).parents[1]
# pytest's, torch's and Triton's own needs; everything else that is installed here cannot be imported in the child.
ALLOWED = """
    pytest _pytest pluggy iniconfig packaging pygments py
    torch torchgen functorch triton numpy typing_extensions sympy mpmath networkx filelock fsspec jinja2 markupsafe tqdm
    safetensors
    tests lora_kernels serving benchmarks devstack
"""
CHILD = f"""
import sys

class Bare:
    allowed = sys.stdlib_module_names | set({ALLOWED!r}.split())

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in self.allowed and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"{{name}} is not on this machine", name=name)

sys.meta_path.insert(0, Bare())
import torch
torch.cuda.is_available = lambda: True  # collected alone, never run
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_gpu_tests_are_collected_where_django_drivers_and_plug_ins_are_missing() -> None:
    environment = triton_setup.environment("3.9.0", interpret=True)
    hidden = {name for name in environment if name.startswith(("INTARSIA_", "PYTEST_", "DATABASE_", "DJANGO_"))}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "-m", "gpu", "--collect-only", "-p", "no:cacheprovider", "tests"],
        cwd=ROOT,
        env={name: value for name, value in environment.items() if name not in hidden}
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for file in ("test_triton_gpu.py", "test_staging.py"):
        assert f"<Module {file}>" in done.stdout
    assert "test_kernels_and_runner_equal_plain_torch_on_the_gpu" in done.stdout
    assert "no databases (missing: django, psycopg" in done.stdout
