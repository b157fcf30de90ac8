"""A plan's targets become a pool's limits; what is none is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.fleet.targets import CEILING, Limits, TargetsRefused

POOL = {
    "mu": {"1": 4.0, "8": 5.0},
    "ceiling": {"1": 0.4, "16": 0.8},
    "min": 2,
    "k": 1,
    "ready_seconds": 45.0,
    "working_set": 120,
}


def written(folder: Path, pools: object, format: int = 1) -> Path:
    path = folder / "targets.json"
    path.write_text(json.dumps({"format": format, "made_at": "2026-11-27T12:00:00Z", "pools": pools}))
    return path


def test_targets_are_read(tmp_path: Path) -> None:
    limits = Limits.from_targets(written(tmp_path, {"llama": POOL}), "llama", most=30)
    assert (limits.least, limits.most, limits.spare, limits.ready_seconds, limits.working_set) == (2, 30, 1, 45.0, 120)
    assert limits.ceiling_of(1) == 0.4 and limits.ceiling_of(40) == 0.8
    assert limits.ceiling_of(8) == pytest.approx(0.4 + 0.4 * 7 / 15)
    assert limits.mu_of(8) == 5.0
    assert Limits.from_targets(written(tmp_path, {"llama": POOL}), "llama", least=0).least == 0


def test_without_a_file_there_are_the_defaults() -> None:
    limits = Limits.from_targets(None, "llama")
    assert limits.ceiling_of(1) == limits.ceiling_of(99) == CEILING and limits.mu_of(3) is None


@pytest.mark.parametrize(
    "pools, format",
    [
        ({"other": POOL}, 1),
        ({"llama": POOL}, 2),
        ({"llama": {**POOL, "ceiling": {"1": 1.4}}}, 1),
        ({"llama": {**POOL, "ceiling": {"zero": 0.4}}}, 1),
        ({"llama": {**POOL, "surprise": 1}}, 1),
        ({"llama": {**POOL, "min": 90}}, 1),
    ],
)
def test_other_files_are_refused(tmp_path: Path, pools: object, format: int) -> None:
    with pytest.raises(TargetsRefused):
        Limits.from_targets(written(tmp_path, pools, format), "llama")


def test_limits_that_cannot_hold_are_refused(tmp_path: Path) -> None:
    for wrong in ({"least": 3, "most": 2}, {"spare": -1}, {"ready_seconds": 0.0}):
        with pytest.raises(ValueError):
            Limits(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TargetsRefused):
        Limits.from_targets(tmp_path / "none.json", "llama")
