"""The two Triton versions the GPU kernels are tested on: `python -m tests.triton_setup` installs the newer one, which
`make test` needs, and with `--all` both, if they are missing.

Triton comes with CUDA builds of torch, not with the CPU build of a development environment, and one environment cannot
hold two versions. Each has a folder of its own, which is on PYTHONPATH of the processes that run or compile kernels.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.state import State
from tests.package_folder import install_folder

# 3.9.0 comes with new installs, 3.6.0 with torch 2.11, the oldest in use. The interpreter of 3.6 takes
# one-element arrays for integers, which numpy 2.4 refuses.
VERSIONS = {"3.9.0": ("triton==3.9.0",), "3.6.0": ("triton==3.6.0", "numpy==2.3.5")}
NEWEST = "3.9.0"
# AMD's libraries and NVIDIA's profiler: neither interprets nor compiles for NVIDIA. Half of the installed size.
UNUSED = ("backends/amd/lib", "backends/nvidia/lib/cupti", "backends/nvidia/lib/cupti-blackwell")


def folder(version: str) -> Path:
    """Return the folder for a version, installed or not."""
    return State.open().root / "triton" / version


def environment(version: str, *, interpret: bool) -> dict[str, str]:
    """Return the environment of a process that imports this version. Raises LocalStackError if it is missing."""
    if not _is_installed(version):
        raise LocalStackError(f"Triton {version} is missing.\nInstall it: {sys.executable} -m tests.triton_setup --all")
    paths = [str(folder(version)), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TRITON_INTERPRET": "1" if interpret else "0",
        "TRITON_CACHE_DIR": str(folder("cache")),
        "OMP_NUM_THREADS": "1",
    }


def install(version: str) -> None:
    """Install one version unless it is there. An interruption leaves nothing behind. Raises LocalStackError."""
    if _is_installed(version):
        return
    note = " for the kernel tests (about 200 MB)"
    install_folder(folder(version), f"Triton {version}", VERSIONS[version], _remove_unused, note)


def _remove_unused(made: Path) -> None:
    for part in UNUSED:
        shutil.rmtree(made / "triton" / part, ignore_errors=True)


def _is_installed(version: str) -> bool:
    return (folder(version) / f"triton-{version}.dist-info" / "METADATA").exists()


def main() -> int:
    try:
        for version in VERSIONS if sys.argv[1:] == ["--all"] else (NEWEST,):
            install(version)
    except LocalStackError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
