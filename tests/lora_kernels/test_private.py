"""A private pool's pages stay out of core dumps, of forked children and, where the system allows a lock, of swap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lora_kernels import AdapterPool, PoolSpec, SiteSpec, memory
from tests.lora_kernels.factories import make_adapter

SPEC = PoolSpec((SiteSpec("o", 512, (512,)),), num_layers=2, max_rank=64)
ROOT = Path(__file__).resolve().parents[2]


def flags_of(address: int) -> set[str]:
    """The kernel's flags of the mapping at `address`: dd is DONTDUMP, wf WIPEONFORK, lo locked."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first and ":" not in first:
            begin, end = (int(number, 16) for number in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            return set(line.split()[1:])
    raise AssertionError("no mapping there")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_every_page_of_a_private_pool_is_private_to_the_kernel(dtype: torch.dtype) -> None:
    pool = AdapterPool(SPEC, 4, 2, dtype, private=True)
    for tensor in pool.site("o").tensors():
        found = flags_of(tensor.data_ptr())
        assert {"dd", "wf"} <= found
        assert ("lo" in found) or not pool.locked


def test_a_pool_is_not_locked_unless_it_is_asked_to_be() -> None:
    pool = AdapterPool(SPEC, 4, 2, torch.float32)
    assert not pool.locked and "lo" not in flags_of(pool.site("o").a.data_ptr())


CHILD = """
import os, resource, sys, torch
from lora_kernels import AdapterPool
from tests.lora_kernels.test_private import SPEC, make_adapter
if sys.argv[1] == "no lock":
    from serving.platform.confinement.namespaces import drop_capabilities
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    drop_capabilities()
pool = AdapterPool(SPEC, 4, 2, torch.float32, private=True)
pool.load(0, make_adapter(SPEC, 16))
weights = pool.site("o").a
assert float(weights.abs().max()) > 0
if sys.argv[1] == "no lock":
    print(pool.locked)
elif os.fork() == 0:
    print(float(weights.abs().max()), flush=True)
    os._exit(0)
else:
    os.wait()
    assert float(weights.abs().max()) > 0
"""


@pytest.mark.parametrize(("case", "printed"), [("no lock", "False"), ("fork", "0.0")])
def test_a_refused_lock_is_known_and_a_forked_child_sees_zeros(case: str, printed: str) -> None:
    command = [sys.executable, "-c", CHILD, case]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, printed), done.stderr


def test_an_old_kernel_that_refuses_to_free_locked_pages_gets_them_unlocked_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, int]] = []

    class OldKernel:
        locked = True

        def madvise(self, address: Any, length: Any, advice: int) -> int:
            calls.append(("madvise", advice))
            return -1 if self.locked or advice == 24 else 0

        def munlock(self, address: Any, length: Any) -> int:
            self.locked = False
            calls.append(("munlock", 0))
            return 0

        def mlock2(self, address: Any, length: Any, flags: int) -> int:
            self.locked = True
            calls.append(("mlock2", flags))
            return 0

    old = OldKernel()
    monkeypatch.setattr(memory, "_c_library", lambda: old)
    memory.give_back(1 << 20, 1 << 20)
    assert calls == [("madvise", 4), ("madvise", 24), ("munlock", 0), ("madvise", 4), ("mlock2", 1)]


def test_a_loaded_private_pool_computes_the_same() -> None:
    private, plain = (AdapterPool(SPEC, 4, 2, torch.bfloat16, private=value) for value in (True, False))
    for pool in (private, plain):
        pool.load(1, make_adapter(SPEC, 20))
    assert torch.equal(private.site("o").a_of(1, [0, 1]), plain.site("o").a_of(1, [0, 1]))
