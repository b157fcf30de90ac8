"""The package on its own: it needs numpy and torch, and a wheel of it holds every module and source file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "lora_kernels"
WITHOUT = """
import sys
for name in ("triton", "django", "transformers", "serving", "sealed_weights"):
    sys.modules[name] = None
import torch
from lora_kernels import AdapterPool, BatchMetadata, LoraPair, PoolSpec, SiteSpec, lora_apply
pool = AdapterPool(PoolSpec((SiteSpec("o", 8, (8,)),), 1), 1, 1)
pool.load(0, {(0, "o", 0): LoraPair(torch.eye(8), torch.eye(8), 3.0)})
y = lora_apply(torch.zeros(2, 8), torch.ones(2, 8), "o", 0, BatchMetadata.build([0, -1], [1, 1], pool))
assert y.tolist() == [[3.0] * 8, [0.0] * 8]
print(lora_apply.__code__.co_filename)
"""


def test_an_installed_wheel_works_with_numpy_and_torch(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
        archive.extractall(tmp_path / "site")
    for path in PACKAGE.rglob("*"):
        if path.suffix in {".py", ".c", ".h", ".json"} and "build" not in path.relative_to(PACKAGE).parts:
            assert path.relative_to(PACKAGE.parent).as_posix() in held

    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))


def test_its_metadata_names_every_folder_of_code() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    folders = {".".join(("lora_kernels", *p.parent.relative_to(PACKAGE).parts)) for p in PACKAGE.rglob("__init__.py")}
    assert set(project["tool"]["setuptools"]["packages"]) == folders
    assert [requirement.split(">")[0] for requirement in project["project"]["dependencies"]] == ["numpy", "torch"]
