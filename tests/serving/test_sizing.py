"""Memory on a card and on a host: what an 8B model gets on 24, 48 and 80 GB, and plans that cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.config import ServingConfig
from serving.errors import ConfigError
from serving.memory import available_bytes
from serving.models.llama import pool_spec
from serving.replica import plan_gpu
from serving.runner import Precision, bytes_per_block
from serving.sizing import MIB, Card, CardPlan, Steps, Units, host_copies, plan_card, step_bytes, weight_bytes
from tests.serving.shapes import LLAMA_3_8B

BFLOAT16 = Precision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
# MiB that drivers report for a small card of each size (L4, L40S, A100), and about what a process's context takes.
CARDS = {24: 23_034, 48: 46_068, 80: 81_920}
CONTEXT = 500


def card_of(gigabytes: int) -> Card:
    total = CARDS[gigabytes] * MIB
    return Card(total=total, free=total - CONTEXT * MIB)


@pytest.fixture
def plan_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "config.json").write_text("{}")

    def plan(card: Card, *, eight_bits: bool = False, **flags: Any) -> CardPlan:
        monkeypatch.setattr("serving.replica.keeps_eight_bits", lambda model, device: eight_bits)
        config = ServingConfig(model=tmp_path, **flags).on("cuda")
        block = bytes_per_block(LLAMA_3_8B, config.block_size, BFLOAT16, torch.device("cuda"))
        memory = plan_gpu(config, LLAMA_3_8B, BFLOAT16, block, card)
        assert memory.card is not None and (memory.blocks, memory.pages) == (memory.card.blocks, memory.card.pages)
        return memory.card

    return plan


def test_weights_kv_and_pages_of_an_8b_model_are_what_its_shapes_say() -> None:
    assert weight_bytes(LLAMA_3_8B, 2, eight_bits=False) == 2 * 8_030_261_248  # the model card's parameters
    assert weight_bytes(LLAMA_3_8B, 2, eight_bits=True) == pytest.approx(9.08e9, rel=0.002)
    assert bytes_per_block(LLAMA_3_8B, 16, BFLOAT16, torch.device("cuda")) == 16 * 131_072
    a, b = (3 + 1 + 2) * 4_096 + 14_336, 6_144 + 4_096 + 28_672 + 4_096
    assert pool_spec(LLAMA_3_8B).page_bytes(torch.bfloat16) == 32 * 16 * (a + b) * 2


@pytest.mark.parametrize(
    ("gigabytes", "eight_bits", "tokens", "adapters"),
    [(24, False, 12_000, 6), (24, True, 50_000, 24), (48, False, 130_000, 60), (80, False, 300_000, 150)],
)
def test_an_8b_model_works_by_default_on_every_common_card(
    plan_on: Any, gigabytes: int, eight_bits: bool, tokens: int, adapters: int
) -> None:
    plan = plan_on(card_of(gigabytes), eight_bits=eight_bits)
    assert plan.blocks * 16 >= tokens and plan.pages >= adapters
    assert plan.used + CONTEXT * MIB <= 0.9 * plan.card.total
    assert 0.9 * plan.card.total - plan.used - CONTEXT * MIB < plan.units.block + plan.units.page, (
        "nothing is left over"
    )
    assert plan.table()[-1].startswith(f"{plan.used // MIB:7d} MiB  together")


def test_flags_fix_their_part_and_the_other_takes_the_rest(plan_on: Any) -> None:
    card = card_of(48)
    whole = plan_on(card)
    kv = plan_on(card, kv_cache_mb=4_096)
    assert kv.blocks == 4_096 * MIB // kv.units.block and kv.pages > whole.pages
    adapters = plan_on(card, adapter_memory_mb=1_024)
    assert adapters.pages == 1_024 * MIB // adapters.units.page and adapters.blocks > whole.blocks
    both = plan_on(card, kv_cache_mb=4_096, adapter_memory_mb=1_024)
    assert (both.blocks, both.pages) == (kv.blocks, adapters.pages)
    assert plan_on(card, gpu_memory_fraction=0.8).blocks < whole.blocks
    assert plan_on(card, max_batched_tokens=8_192).blocks < whole.blocks


@pytest.mark.parametrize(
    ("card", "flags"),
    [
        (Card(total=16_000 * MIB, free=15_500 * MIB), {}),
        (Card(total=24_000 * MIB, free=9_000 * MIB), {}),
        (card_of(24), {"gpu_memory_fraction": 0.5}),
        (card_of(24), {"kv_cache_mb": 16_384}),
        (card_of(24), {"adapter_memory_mb": 16_384}),
        (card_of(24), {"kv_cache_mb": 1}),
        (card_of(24), {"adapter_memory_mb": 1}),
    ],
)
def test_a_plan_that_cannot_work_is_refused_with_what_to_change(
    plan_on: Any, card: Card, flags: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"does not fit.*MiB.*8-bit floats.*--gpu-memory-fraction.*--kv-cache-mb"):
        plan_on(card, **flags)


UNITS = Units(block=2 * MIB, block_tokens=16, page=80 * MIB, page_rank=16, slots=64)


@settings(max_examples=100, deadline=None)
@given(
    total=st.integers(1, 200_000),
    taken=st.integers(0, 50_000),
    weights=st.integers(1, 150_000),
    reserve=st.integers(0, 8_000),
    fraction=st.floats(0.05, 1),
    kv=st.integers(0, 50_000),
    adapters=st.integers(0, 20_000),
)
def test_a_plan_never_takes_more_than_its_share_and_always_holds_two_blocks_and_a_page(
    total: int, taken: int, weights: int, reserve: int, fraction: float, kv: int, adapters: int
) -> None:
    card = Card(total=total * MIB, free=max(total - taken, 0) * MIB)
    try:
        plan = plan_card(
            card,
            UNITS,
            weights=weights * MIB,
            reserve={"steps": reserve * MIB},
            fraction=fraction,
            kv_bytes=kv * MIB,
            adapter_bytes=adapters * MIB,
        )
    except ConfigError:
        return
    assert plan.used <= card.total * fraction - (card.total - card.free)
    assert plan.blocks >= 2 and plan.pages >= 1
    if adapters == 0:
        assert plan.pages <= 4 * UNITS.slots, "small models leave the rest to KV"


def test_steps_take_memory_for_their_rows_samples_and_graphs() -> None:
    small, large = (
        step_bytes(LLAMA_3_8B, Steps(rows=rows, samples=samples, max_len=8_192, graphs=graphs), 2, 256)
        for rows, samples, graphs in ((2_048, 256, 80), (8_192, 512, 120))
    )
    assert all(large[name] > small[name] for name in small if name != "cuBLAS and code")
    assert small["activations"] == pytest.approx(0.62e9, rel=0.05)
    assert 1.5e9 < sum(small.values()) < 2.5e9


def test_sizes_left_at_0_are_the_devices_and_one_that_is_set_bounds_the_other(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    plain = ServingConfig(model=tmp_path)
    cpu, gpu = plain.on("cpu"), plain.on("cuda")
    assert (cpu.max_batched_tokens, cpu.max_num_seqs, cpu.adapter_slots) == (512, 64, 64)
    assert (cpu.kv_cache_mb, cpu.adapter_memory_mb) == (512, 1_024)
    assert (gpu.max_batched_tokens, gpu.max_num_seqs, gpu.adapter_slots) == (2_048, 256, 256)
    assert (gpu.kv_cache_mb, gpu.adapter_memory_mb) == (0, 0)
    assert ServingConfig(model=tmp_path, max_batched_tokens=40).on("cpu").max_num_seqs == 40
    assert ServingConfig(model=tmp_path, max_num_seqs=900).on("cpu").max_batched_tokens == 900
    for flags in ({"max_batched_tokens": 8, "max_num_seqs": 9}, {"gpu_memory_fraction": 0.0}, {"kv_cache_mb": -1}):
        with pytest.raises(ConfigError):
            ServingConfig(model=tmp_path, **flags)


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_available_memory_is_the_systems_or_what_the_container_leaves(tmp_path: Path) -> None:
    meminfo = {"proc/meminfo": "MemTotal: 64000000 kB\nMemAvailable:   32000000 kB\n"}
    assert available_bytes(tmp_path / "nowhere") == 0
    assert available_bytes(system(tmp_path / "host", meminfo)) == 32_000_000 << 10
    unlimited = {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"}
    assert available_bytes(system(tmp_path / "unlimited", meminfo | unlimited)) == 32_000_000 << 10
    limited = {
        "sys/fs/cgroup/memory.max": f"{8 << 30}\n",
        "sys/fs/cgroup/memory.current": f"{5 << 30}\n",
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {1 << 30}\n",
    }
    assert available_bytes(system(tmp_path / "limited", meminfo | limited)) == 4 << 30
    old = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{6 << 30}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{5 << 30}\n",
    }
    assert available_bytes(system(tmp_path / "old", meminfo | old)) == 1 << 30
    assert available_bytes() > 0


def test_host_copies_fit_the_container_and_leave_most_of_it() -> None:
    assert host_copies(0) == 0
    assert host_copies(16 << 30) == 4 << 30
    assert host_copies(1 << 40) == 32 << 30
