"""The layer-by-layer comparison with transformers and PEFT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from serving.debug import layers
from tests.serving.tiny import Tiny, make_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("adapter", [None, "r16-rslora"])
def test_every_layer_agrees_with_the_reference(
    tiny: Tiny, adapter: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [] if adapter is None else ["--adapter", str(tiny.adapters / adapter)]
    assert layers.main(["--model", str(tiny.model), "--text", "some words", *chosen]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and "←" not in "".join(lines)


def test_a_missing_adapter_is_said(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert layers.main(["--model", str(tiny.model), "--adapter", str(tmp_path / "none")]) == 2
    assert "no PEFT adapter there" in capsys.readouterr().err


def test_the_first_layer_that_leaves_the_reference_is_pointed_at() -> None:
    torch.manual_seed(0)
    reference = [torch.randn(4, 8) for _ in range(3)]
    ours = [reference[0].clone(), reference[1] + 0.1, reference[2] + 0.1]
    differences = layers.compare(ours, reference)
    assert differences[0].worst == 0 and differences[1].relative > 0.05
    marked = [line for line in layers.table(differences, 1e-3).splitlines() if "←" in line]
    assert len(marked) == 1 and marked[0].split()[0] == "2"


def test_numbers_that_are_none_never_pass() -> None:
    broken = [torch.full((2, 4), float("nan"))]
    differences = layers.compare(broken, [torch.ones(2, 4)])
    assert "←" in layers.table(differences, 1e-3)
