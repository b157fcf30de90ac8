"""`--adapter-dtype`: resident adapters in 8 bits."""

from __future__ import annotations

import pytest
import torch

from serving.adapters.directory import DirectoryAdapterSource
from serving.config import ServingConfig
from serving.errors import ConfigError
from serving.replica import Base, build_engine
from serving.runner import choose_precision
from tests.serving.harness import running
from tests.serving.tiny import Tiny


async def test_an_engine_serves_8_bit_adapters_evicts_them_and_answers_the_same_after(tiny: Tiny) -> None:
    names = ["r4", "r8-attention", "r16-rslora"]
    async with running(tiny, adapter_dtype="int8", adapter_slots=1) as run:
        assert run.engine.adapters.pool.dtype == torch.int8
        first = [await run.tokens(range(9), name) for name in names]
        assert [await run.tokens(range(9), name) for name in names] == first
        assert run.engine.adapters.evictions >= len(names)
        assert len({tuple(tokens) for tokens in [*first, await run.tokens(range(9))]}) == len(names) + 1


def test_8_bit_adapters_take_half_the_memory(tiny: Tiny) -> None:
    base = Base.from_dir(tiny.model)
    pages = {}
    for name in ("auto", "int8"):
        config = ServingConfig(
            model=tiny.model,
            adapters=tiny.adapters,
            kv_cache_mb=4,
            adapter_memory_mb=8,
            threads=1,
            dtype="bfloat16",
            device="cpu",
            adapter_dtype=name,
        )
        engine = build_engine(config, base, DirectoryAdapterSource(tiny.adapters, base.spec))
        pages[name] = engine.adapters.residents.page_limit
        engine.adapters.close()
    assert 1.8 * pages["auto"] < pages["int8"] <= 2 * pages["auto"] + 1


def test_types_of_adapters_that_are_not_served_are_refused_by_name(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="--adapter-dtype fp8"):
        ServingConfig(model=tiny.model, adapter_dtype="fp8")
    with pytest.raises(ConfigError, match="--adapter-dtype int8: only the C kernels"):
        choose_precision("bfloat16", torch.device("cuda"), adapters="int8")
