"""The serving benchmark's arithmetic on cells."""

from __future__ import annotations

import pytest

from benchmarks.serving.report import OURS, OURS_WITHOUT, VLLM_LORA, Cell, Results

PLACE = ("distinct", 16)


def _results(**rates: list[float]) -> Results:
    results = Results()
    for engine, measured in rates.items():
        name = {"ours": OURS, "without": OURS_WITHOUT, "vllm": VLLM_LORA}[engine]
        results.cells += [
            Cell(name, *PLACE, repetition, {"output_tokens_per_s": rate}) for repetition, rate in enumerate(measured)
        ]
    return results


def test_a_ratio_compares_cells_that_were_measured_next_to_each_other() -> None:
    # The machine slows down to a third and recovers: of the medians, 80 and 50, nothing follows.
    results = _results(ours=[80, 27, 81], without=[100, 50, 30])
    assert results.ratio((OURS, *PLACE), (OURS_WITHOUT, *PLACE)) == pytest.approx(0.8)


def test_a_peer_measured_once_is_held_against_the_median() -> None:
    results = _results(ours=[90, 60, 120], vllm=[30])
    assert results.ratio((OURS, *PLACE), (VLLM_LORA, *PLACE)) == pytest.approx(3)


def test_a_configuration_that_did_not_run_has_no_ratio() -> None:
    results = _results(ours=[90])
    assert results.ratio((OURS, *PLACE), (VLLM_LORA, *PLACE)) is None
    assert _results().ratio((OURS, *PLACE), (VLLM_LORA, *PLACE)) is None
