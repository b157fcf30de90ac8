"""The library of C kernels, with every instruction set that can run here."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lora_kernels.cpu.build import FLAGS, alone
from lora_kernels.native import HEADERS
from serving.kernels.library import SOURCE_FOLDER, KernelLibrary, load_library
from tests.tiers import SERVICES

INCLUDE = f"-I{HEADERS}"


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    found = load_library()
    assert found is not None, "these tests need a C compiler"
    return found


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A library whose AVX-512 kernels run on any processor: their intrinsics are written out in C.

    Compiling takes 17 s of a core: the test processes of one session share the library.
    """
    shared = os.environ.get(SERVICES)
    folder = Path(shared) / "emulated" if shared else tmp_path_factory.mktemp("emulated")
    folder.mkdir(mode=0o700, exist_ok=True)
    with alone(folder):
        library = folder / "library.so"
        if not library.exists():
            compile_emulated(folder).replace(library)
    handle = ctypes.CDLL(str(library))
    assert handle.sk_linear_use(b"avx512") == 0, "the AVX-512 kernels disagree with the portable ones"
    return SimpleNamespace(handle=handle, instruction_set="avx512")


def compile_emulated(folder: Path) -> Path:
    """Compile into a folder and return the library's path."""
    kernels = ["linear_avx512", "linear_int8_avx512", "unpack_avx512"]
    # -ffp-contract=off: a product and a sum that the instruction rounds apart stay apart.
    emulating = ["-O0", "-Dtarget(x)=", f"-I{Path(__file__).parent / 'avx512_emulated'}", "-Wno-psabi"]
    folder.joinpath("everything.c").write_text("int lk_supports(const char *set) { return set != 0; }")
    jobs = {"linear": [], **dict.fromkeys(kernels, emulating)}
    for name, flags in jobs.items():
        command = [
            "cc",
            *FLAGS,
            "-fopenmp",
            "-mfma",
            "-ffp-contract=off",
            *flags,
            INCLUDE,
            "-c",
            f"{SOURCE_FOLDER / name}.c",
        ]
        subprocess.run([*command, "-o", f"{folder / name}.o"], check=True, timeout=120)
    rest = [
        *(SOURCE_FOLDER.glob("linear_*.c")),
        *(SOURCE_FOLDER.glob("unpack*.c")),
        SOURCE_FOLDER / "pack.c",
        SOURCE_FOLDER / "team.c",
        folder / "everything.c",
    ]
    objects = [f"{folder / name}.o" for name in jobs]
    sources = [path for path in rest if path.stem not in kernels]
    made = folder / "made.so"
    # Its own `lk_supports`, not that of the library in use.
    command = [
        "cc",
        *FLAGS,
        INCLUDE,
        "-fopenmp",
        "-shared",
        "-Wl,-Bsymbolic",
        *map(str, [*sources, *objects]),
        "-o",
        str(made),
    ]
    subprocess.run([*command, "-lm"], check=True, timeout=120)
    return made


@pytest.fixture(params=["portable", "avx2", "avx512"])
def any_library(request: pytest.FixtureRequest, library: KernelLibrary) -> Iterator[Any]:
    """Every instruction set: those that this processor lacks, emulated, or, for AVX2, left out."""
    before = library.instruction_set
    if library.use(request.param):
        yield library
    elif request.param == "avx512":
        yield request.getfixturevalue("emulated")
    else:
        pytest.skip(f"this processor has no {request.param}")
    library.use(before)
