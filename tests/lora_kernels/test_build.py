"""Compiling on first use: the cache, and every way in which it can be missing."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lora_kernels import AdapterPool, BackendError, BatchMetadata, lora_apply, reference
from lora_kernels.cpu.build import alone, built_library
from lora_kernels.cpu.library import load_library
from tests.lora_kernels.factories import activations, make_adapter, one_site

needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CC") or "cc") is None, reason="no C compiler")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, and a process that has not loaded the library yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_library.cache_clear()
    yield tmp_path / "cache"
    load_library.cache_clear()


@pytest.mark.parametrize("compiler", ["/nonexistent/cc", "false"])
def test_without_a_working_compiler_the_pool_runs_on_torch_and_says_so_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    spec = one_site(32, (16,))
    with caplog.at_level(logging.WARNING, logger="lora_kernels"):
        pool = AdapterPool(spec, 2, 2)
        AdapterPool(spec, 2, 2)
    assert [record.getMessage() for record in caplog.records if "falling back to slower torch" in record.getMessage()]
    assert len(caplog.records) == 1
    pool.load(0, make_adapter(spec, 4))
    meta = BatchMetadata.build([0, -1], [2, 1], pool)
    y, x = activations(meta, torch.float32)
    expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
    torch.testing.assert_close(lora_apply(y, x, "site", 0, meta), expected)
    with pytest.raises(BackendError):
        AdapterPool(spec, 2, 2, backend="c")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two small files: our own take a quarter of a minute, and every process that runs kernels has compiled them."""
    folder = tmp_path / "sources"
    folder.mkdir()
    folder.joinpath("one.c").write_text("int one(void) { return 1; }")
    folder.joinpath("two.c").write_text('#include "one.h"\nint two(void) { return one() + one(); }')
    folder.joinpath("one.h").write_text("int one(void);")
    return folder


@needs_compiler
def test_the_library_is_compiled_once_and_only_we_may_write_it(fresh: Path, sources: Path) -> None:
    with built_library(sources) as path:
        first = path
    assert first.parent == fresh / "lora_kernels"
    assert not first.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    compiled_at = first.stat().st_mtime_ns
    with built_library(sources) as path:
        assert path == first
    assert first.stat().st_mtime_ns == compiled_at
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]

    first.chmod(0o777)
    with built_library(sources) as path:
        assert path.stat().st_mtime_ns != compiled_at or not path.stat().st_mode & stat.S_IWOTH


@needs_compiler
def test_without_a_cache_folder_the_library_is_private_and_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with built_library(sources) as path:
        assert path.exists() and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


# Says that it found no library and waits for its turn, and when it compiles.
COUNTED = """
import sys
from pathlib import Path
from lora_kernels.cpu import build

def said(text, function):
    def call(*arguments):
        print(text, flush=True)
        return function(*arguments)
    return call

build.alone, build._compile = said("waits", build.alone), said("compiles", build._compile)
with build.built_library(Path(sys.argv[1])) as path:
    print(path.exists(), flush=True)
"""


@needs_compiler
def test_of_processes_that_start_together_one_compiles_and_the_other_takes_its_library(
    fresh: Path, sources: Path
) -> None:
    folder = fresh / "lora_kernels"
    folder.mkdir(mode=0o700, parents=True)
    command = [sys.executable, "-c", COUNTED, str(sources)]
    with alone(folder):
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for child in both:
            assert child.stdout is not None and child.stdout.readline() == "waits\n"
    said = sorted(child.communicate(timeout=120)[0] for child in both)
    assert said == ["True\n", "compiles\nTrue\n"]
    assert len(list(folder.iterdir())) == 1
