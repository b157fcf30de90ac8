"""The sketch of weights: the same for every way to write the same update, and apart for independent adapters."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from marketplace.publishing.checks.lineage import COPIED, RELATED
from protocol.lineage import SKETCH_BYTES, read_sketch, write_sketch
from tests.together.copied_adapters import ADAPTERS, SAMPLES, Adapter, compare, variants


@pytest.fixture(scope="module")
def samples() -> dict[str, Adapter]:
    return {name: Adapter.read(ADAPTERS / name) for name in SAMPLES}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.deep] * (n != SAMPLES[0])) for n in SAMPLES])
def test_every_copy_of_a_sample_has_its_sketch(samples: dict[str, Adapter], name: str) -> None:
    sketch = samples[name].sketch()
    assert len(sketch) == SKETCH_BYTES and read_sketch(write_sketch(sketch)) == sketch
    for what, copy in variants(samples[name]).items():
        group, _ = compare(sketch, copy.sketch())
        assert group >= COPIED, (what, group)


def test_the_samples_are_independent_of_one_another(samples: dict[str, Adapter]) -> None:
    sketches = {name: adapter.sketch() for name, adapter in samples.items()}
    for one, other in combinations(sketches, 2):
        group, whole = compare(sketches[one], sketches[other])
        assert group < COPIED / 2 and whole < RELATED / 2, (one, other, group, whole)


def test_seeds_that_learned_the_same_direction_in_part_are_no_copies(samples: dict[str, Adapter]) -> None:
    """Two trainings on one task share a part of their update: cosines of .2 to .4 were measured; here .5."""
    adapter = samples["finance"]
    sketches = []
    for seed in (1, 2):
        draw = np.random.default_rng(seed)

        def trained(a: np.ndarray, b: np.ndarray, draw: np.random.Generator = draw) -> tuple[np.ndarray, np.ndarray]:
            own = draw.normal(size=a.shape) * a.std(), draw.normal(size=b.shape) * b.std()
            size = np.linalg.norm(b @ a) / np.linalg.norm(own[1] @ own[0])
            return np.vstack([a, own[0]]), np.hstack([b, own[1] * size])

        sketches.append(adapter.changed(trained, r=16, lora_alpha=32).sketch())
    group, _ = compare(*sketches)
    assert 0.2 < group < COPIED


def test_an_adapter_that_changes_nothing_has_an_empty_sketch(samples: dict[str, Adapter]) -> None:
    untrained = samples["finance"].changed(lambda a, b: (a, np.zeros_like(b)))
    assert untrained.sketch() == bytes(SKETCH_BYTES)
