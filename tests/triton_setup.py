"""The two Triton versions the GPU kernels are tested on: `python -m tests.triton_setup` installs what is missing.

Triton comes with CUDA builds of torch, not with the CPU build of a development environment, and one environment cannot
hold two versions. Each has a folder of its own, which is on PYTHONPATH of the processes that run or compile kernels.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.state import State
from tests.package_folder import install_folder, installing

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
    """Return the environment of a process that imports this version, installed now if it is missing.

    Raises MissingToolError if it cannot be installed.
    """
    install(version)
    paths = [str(folder(version)), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TRITON_INTERPRET": "1" if interpret else "0",
        "TRITON_CACHE_DIR": str(folder("cache")),
        "OMP_NUM_THREADS": "1",
    }


def install(version: str) -> None:
    """Install one version unless it is there. An interruption leaves nothing behind. Raises MissingToolError."""
    if _is_installed(version):
        return
    note = " for the kernel tests (about 200 MB)"
    with installing(f"triton-{version}"):
        if not _is_installed(version):
            install_folder(folder(version), f"Triton {version}", VERSIONS[version], _remove_unused, note)


def _remove_unused(made: Path) -> None:
    for part in UNUSED:
        shutil.rmtree(made / "triton" / part, ignore_errors=True)


def _is_installed(version: str) -> bool:
    return (folder(version) / f"triton-{version}.dist-info" / "METADATA").exists()


def main() -> int:
    parser = argparse.ArgumentParser(description="Install versions of Triton for the tests.")
    parser.add_argument("version", nargs="?", choices=list(VERSIONS), help="all, unless one is named")
    chosen = parser.parse_args().version
    try:
        for version in [chosen] if chosen else VERSIONS:
            install(version)
    except LocalStackError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
