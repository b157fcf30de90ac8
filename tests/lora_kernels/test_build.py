"""Compiling on first use: the cache, and every way in which it can be missing."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lora_kernels import AdapterPool, BackendError, BatchMetadata, lora_apply, reference
from lora_kernels.cpu.build import built_library
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


@needs_compiler
def test_the_library_is_compiled_once_and_only_we_may_write_it(fresh: Path) -> None:
    with built_library() as path:
        first = path
    assert first.parent == fresh / "lora_kernels"
    assert not first.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    compiled_at = first.stat().st_mtime_ns
    with built_library() as path:
        assert path == first
    assert first.stat().st_mtime_ns == compiled_at
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]

    first.chmod(0o777)
    with built_library() as path:
        assert path.stat().st_mtime_ns != compiled_at or not path.stat().st_mode & stat.S_IWOTH


@needs_compiler
def test_without_a_cache_folder_the_library_is_private_and_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with built_library() as path:
        assert path.exists() and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()
