"""KV blocks whose memory went back to the system."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from serving.kv.storage import BlockedKV

# Four layers of two heads of 32: 32 KiB a block.
CONFIG = SimpleNamespace(num_layers=4, num_heads=2, num_kv_heads=2, head_dim=32)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_blocks_given_back_take_no_memory_read_as_zeros_and_leave_their_neighbours() -> None:
    kv = BlockedKV(CONFIG, 4000, 16, torch.float32)
    kv.data.fill_(1.0)
    size = kv.data.nbytes
    assert size > 16 << 20

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    full = resident()
    kv.give_back([*range(3999, 1999, -1), 5, 1])
    assert full - resident() > 0.45 * size
    inside = kv.data.flatten(1)[3000]
    assert not inside.any()
    assert kv.data[2:5].eq(1.0).all() and kv.data[0].eq(1.0).all() and kv.data[6:2000].eq(1.0).all()
    kv.data[3000] = 2.0
    assert kv.data[3000].eq(2.0).all()
