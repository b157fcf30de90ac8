from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from capacity.errors import PlanRefused
from capacity.memory import ModelShape, Sizes, budget, measured_budget, step
from capacity.residency import distinct, lru_hit, working_set
from capacity.results import Source
from capacity.workload import Sample
from tests.capacity.profiles import profile, workload

LLAMA_8B = ModelShape(layers=32, hidden=4096, kv_heads=8, head_dim=128, parameters=8_030_261_248, site_widths=80_000)


def test_eight_billion_parameters_leave_80_gb_some_260_thousand_tokens() -> None:
    sizes = Sizes(80 * 10**9, 0.92, LLAMA_8B.weights(2), LLAMA_8B.kv_token(2), LLAMA_8B.page(2), 256, 2 * 10**9)
    long = workload(adapters=2000, ranks={"16": 1.0}, samples=(Sample(prompt=900, output=200),))
    found = budget(sizes, long, source=Source.CATALOGUE)
    assert LLAMA_8B.kv_token(2) == 131_072
    assert 230_000 < found.kv_tokens < 290_000
    assert sum(found.kinds().values()) == found.total
    assert step(found, long).number == 5


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    sizes = Sizes(10**10, 0.9, 16 * 10**9, 131_072, 10**6, 4, 10**9)
    with pytest.raises(PlanRefused, match=r"GB are missing") as refused:
        budget(sizes, workload(), source=Source.CATALOGUE)
    assert refused.value.step == 5


def test_a_call_longer_than_the_calibrated_replica_can_hold_is_refused() -> None:
    with pytest.raises(PlanRefused, match="tokens are missing"):
        measured_budget(profile(), workload(samples=(Sample(prompt=600, output=10),)))
    assert measured_budget(profile(), workload()).kv_tokens == 6400


def test_the_formula_of_the_working_set_is_what_lru_does() -> None:
    popularity = workload(adapters=200, zipf=1.0).popularity()
    rng, cache, hits = np.random.default_rng(1), OrderedDict[int, None](), 0
    calls = rng.choice(200, 30_000, p=popularity)
    for adapter in calls.tolist():
        hits += adapter in cache
        cache[adapter] = None
        cache.move_to_end(adapter)
        if len(cache) > 20:
            cache.popitem(last=False)
    assert lru_hit(popularity, np.ones(200), 20) == pytest.approx(hits / len(calls), abs=0.015)


def test_a_batch_of_32_of_2000_adapters_holds_26_different_ones() -> None:
    assert distinct(workload(adapters=2000, zipf=1.0).popularity(), 32) == pytest.approx(26, abs=0.7)


def test_adapters_of_higher_ranks_leave_fewer_resident() -> None:
    small = working_set(workload(adapters=500, ranks={"16": 1.0}), 64, 64, 16)
    large = working_set(workload(adapters=500, ranks={"64": 1.0}), 64, 64, 16)
    assert large.hit < small.hit and large.cold_starts > small.cold_starts
    assert working_set(workload(adapters=0), 8, 8, 4).hit == 1.0
