"""Public rows of other engines: read from a made-up file of their form, and predicted well by the right model alone."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import machine, results
from benchmarks.capacity import public_rows
from benchmarks.capacity.silicon import FILE, Configuration, Point, read
from benchmarks.capacity.steady import catalogue_model, fitted, kv_room, throughput
from capacity.catalogue import read_catalogue

CATALOGUE = read_catalogue(public_rows.CATALOGUE)
ONE_CARD = Configuration("meta-llama/Llama-3.1-8B-Instruct", "vLLM", "0.12.0", "h100-sxm", "", 1)
FOUR_CARDS = Configuration("meta-llama/Llama-3.1-70B", "TensorRT-LLM", "1.0", "b200-sxm", "nvfp4", 4)
CELLS = [
    (batch, prompt, output)
    for batch in (1, 4, 16, 64, 128)
    for prompt, output in ((1024, 1024), (1024, 128), (4096, 256), (8192, 1024))
]
# The machine of these tests is not the catalogue's: products are slow, steps are long.
TRUTH: Mapping[str, float] = {"weights": 1.2, "head": 1.2, "row": 2.0, "sample": 2.0, "step": 2.5, "context": 1.4}
HEAD = (
    *("id", "backend", "backend_version", "model_path", "system", "mode", "isl", "osl", "gemm_quant_mode"),
    *("batch_size", "tp_size", "pp_size", "silicon_ttft_ms", "silicon_tpot_ms"),
)


def points(configuration: Configuration, noise: float = 0.0) -> list[Point]:
    """Return what an engine with the step times of TRUTH would have measured."""
    card = CATALOGUE[configuration.card]
    model, room = catalogue_model(configuration, card).scaled(TRUTH), kv_room(configuration, card)
    asked = [Point(*cell, 1.0, 1.0) for cell in CELLS]
    chance = np.random.default_rng(3)
    rates = throughput(model, asked, room) * np.exp(chance.normal(0, noise, len(asked)))
    return [
        replace(point, ttft=took, tpot=took)
        for point, took in zip(asked, (one.batch / rate for one, rate in zip(asked, rates, strict=True)), strict=True)
    ]


def row(configuration: Configuration, point: Point, **other: str) -> dict[str, object]:
    """Return a row of the file."""
    engines = {"vLLM": "vllm", "TensorRT-LLM": "trtllm"}
    values: list[object] = [
        *("one", engines[configuration.engine], configuration.version, configuration.model),
        *(configuration.card.replace("-", "_"), "agg", point.prompt, point.output, configuration.precision),
        *(point.batch, configuration.cards, 1, 1e3 * point.ttft, 1e3 * point.tpot),
    ]
    return dict(zip(HEAD, values, strict=True)) | other


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write a file of that form."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, HEAD)
        lines.writeheader()
        lines.writerows(rows)
    return path


def test_rows_are_read_from_a_file_a_folder_and_a_wheel(tmp_path: Path) -> None:
    kept = [row(each, point) for each in (ONE_CARD, FOUR_CARDS) for point in points(each)]
    others = [
        row(ONE_CARD, points(ONE_CARD)[0], mode="disagg", batch_size=""),
        row(ONE_CARD, points(ONE_CARD)[0], model_path="deepseek-ai/DeepSeek-R1"),
        row(ONE_CARD, points(ONE_CARD)[0], system="b300_sxm"),
    ]
    file = written(tmp_path / "systems" / FILE, kept + others)
    found = read(file)
    assert set(found) == {ONE_CARD, FOUR_CARDS} and [one.cell for one in found[ONE_CARD]] == CELLS
    assert found[ONE_CARD][0].throughput == pytest.approx(points(ONE_CARD)[0].throughput)
    assert read(tmp_path) == found
    wheel = tmp_path / "wheels" / "some.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.write(file, f"package/systems/{FILE}")
    file.unlink()
    assert read(wheel) == found and read(tmp_path) == found


@pytest.mark.parametrize(
    ("change", "words"),
    [({"gemm_quant_mode": "int3"}, "line 3.*int3"), ({"silicon_tpot_ms": "0"}, "line 3"), ({"backend": "x"}, "line 3")],
)
def test_a_row_of_another_form_is_named(tmp_path: Path, change: dict[str, str], words: str) -> None:
    file = written(tmp_path / FILE, [row(ONE_CARD, point) for point in points(ONE_CARD)[:1]])
    with file.open("a", newline="") as more:
        csv.DictWriter(more, HEAD).writerow(row(ONE_CARD, points(ONE_CARD)[1], **change))
    with pytest.raises(ValueError, match=words):
        read(file)


def test_rows_that_are_not_there_are_asked_for_by_name(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "no.whl"):
        with pytest.raises(FileNotFoundError, match="pip download aiconfigurator-core"):
            read(missing)
    with pytest.raises(ValueError, match="no row"):
        read(written(tmp_path / FILE, []))


def test_five_points_tell_the_rest_of_a_configuration() -> None:
    rows = {each: points(each, noise=0.02) for each in (ONE_CARD, FOUR_CARDS)}
    data = public_rows.compare(rows, CATALOGUE, seed=1, draws=2)
    assert data["errors"]["five points"]["count"] == 2 * 2 * (len(CELLS) - 5)
    assert data["errors"]["five points"]["median"] < 0.04 < 0.2 < data["errors"]["catalogue alone"]["median"]
    assert data["errors"]["five points"]["mean"] < data["errors"]["power law"]["mean"]
    assert data == public_rows.compare(rows, CATALOGUE, seed=1, draws=2)
    lines, fine = public_rows.report(data)
    missed = [line for line in lines if line.endswith("MISSED")]
    assert not fine and len(missed) == 1 and missed[0].startswith("catalogue alone"), "TRUTH is another machine"


def test_rows_that_no_steps_explain_miss_the_bars() -> None:
    right = points(ONE_CARD)
    turned = [replace(point, ttft=other.ttft, tpot=other.tpot) for point, other in zip(right, right[::-1], strict=True)]
    lines, fine = public_rows.report(public_rows.compare({ONE_CARD: turned}, CATALOGUE, seed=1, draws=1))
    assert not fine and sum(line.endswith("MISSED") for line in lines) == 3


def test_a_cell_that_was_drawn_is_not_held_out() -> None:
    twice = [*points(ONE_CARD)[:6], *points(ONE_CARD)[:6]]
    off = public_rows.errors(ONE_CARD, twice, CATALOGUE["h100-sxm"], np.random.default_rng(0), 1)
    given = {twice[index].cell for index in np.random.default_rng(0).choice(12, 5, replace=False)}
    assert len(off["five points"]) == sum(point.cell not in given for point in twice) < 7


def test_callers_without_room_for_their_kv_wait() -> None:
    few, many = Point(64, 4096, 1024, 1.0, 1.0), Point(128, 4096, 1024, 1.0, 1.0)
    model = catalogue_model(ONE_CARD, CATALOGUE["h100-sxm"])
    free = throughput(model, [few, many], room=1e9)
    full = throughput(model, [few, many], room=64 * (4096 + 512))
    assert free[1] > 1.05 * free[0] and full[0] == full[1] == free[0]
    assert 0 < kv_room(ONE_CARD, CATALOGUE["h100-sxm"]) < 80e9 / 131072


def test_points_that_the_catalogue_predicts_leave_it_as_it_is() -> None:
    prior = catalogue_model(FOUR_CARDS, CATALOGUE["b200-sxm"])
    room = kv_room(FOUR_CARDS, CATALOGUE["b200-sxm"])
    own = [replace(point, ttft=1.0, tpot=1.0) for point in points(FOUR_CARDS)[:5]]
    rates = throughput(prior, own, room)
    exact = [replace(one, ttft=one.batch / rate, tpot=one.batch / rate) for one, rate in zip(own, rates, strict=True)]
    assert fitted(prior, exact, room).coefficients == pytest.approx(prior.coefficients, rel=1e-3)


def test_cards_without_a_link_serve_no_replica_together() -> None:
    with pytest.raises(ValueError, match="no link"):
        catalogue_model(replace(ONE_CARD, card="l4", cards=2), CATALOGUE["l4"])


def test_the_page_of_results_shows_the_table(tmp_path: Path) -> None:
    data = public_rows.compare({ONE_CARD: points(ONE_CARD)}, CATALOGUE, seed=1, draws=1)
    file = machine.write_suite(tmp_path, "public_rows", data | {"source": "a file"})
    assert "five points, mean" in results.RENDERERS["public_rows"](file)
