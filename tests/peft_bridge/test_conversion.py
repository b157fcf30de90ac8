"""Adapters of other methods become plain LoRA: the same logits, errors as measured, refusals that leave nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import LlamaForCausalLM
from typer.testing import CliRunner, Result

from creator_cli.main import app
from tests.peft_bridge.folders import write_method, write_pissa, write_rows


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def converted(home: Path, method: str, *more: str | Path) -> Any:
    source, out = write_method(home / method, home / "base", method), home / f"{method}-lora"
    result = run(source, out, "--base", home / "base", "--json", *more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def logits(base: Path, adapter: Path) -> torch.Tensor:
    model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base), str(adapter)).eval()
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.arange(10, 42)[None]).logits[0]
    return found


@pytest.mark.parametrize(
    ("method", "exact"), [("loha", True), ("vera", False), ("adalora", True), ("lokr", False), ("miss", True)]
)
def test_a_converted_adapter_computes_what_the_original_did(home: Path, method: str, exact: bool) -> None:
    report = converted(home, method)
    assert report["method"] == method.upper()
    assert report["error"] <= report["worst"]["error"] <= (1e-4 if exact else 0.05)
    assert {one["module"].rpartition(".")[2] for one in report["modules"]} == {"q_proj", "v_proj"}
    config = json.loads((home / f"{method}-lora" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["task_type"]) == ("LORA", "CAUSAL_LM")
    before, after = logits(home / "base", home / method), logits(home / "base", home / f"{method}-lora")
    assert (before - after).norm() / before.norm() < (1e-4 if exact else 0.05)


def test_what_a_conversion_costs_in_quality_is_measured_on_the_creators_rows(home: Path) -> None:
    source = write_method(home / "rows-loha", home / "base", "loha")
    (source / "contract.json").write_text('{"contract": 1, "instructions": "Say it.", "max_tokens": 4}')
    rows, out = write_rows(home / "rows.jsonl"), home / "rows-lora"
    options = ("--eval", rows, "--scorer", "label")
    shown = run(source, out, "--base", home / "base", *options)
    assert shown.exit_code == 0, shown.output
    assert "right before  0 of 3 (0.0 %)" in shown.stdout and "right after   0 of 3 (0.0 %)" in shown.stdout
    assert (out / "contract.json").read_text() == (source / "contract.json").read_text()


def test_an_adapter_that_loses_too_much_is_refused_and_nothing_is_left(home: Path) -> None:
    source, out = write_method(home / "cut-loha", home / "base", "loha"), home / "cut-lora"
    result = run(source, out, "--base", home / "base", "--rank", "1", "--json")
    error = json.loads(result.stdout)["error"]
    assert result.exit_code == 2 and error["field"] == "rank"
    assert "of its update at rank 1" in error["message"] and "5%" in error["message"]
    assert not out.exists() and not list(home.glob(".cut-lora*"))


def test_pissa_with_its_beginning_becomes_a_lora_of_twice_the_rank(home: Path) -> None:
    trained, initial = write_pissa(home / "pissa", home / "base")
    before = initial.joinpath("adapter_config.json").read_bytes()
    without = run(trained, home / "pissa-lora", "--base", home / "base", "--json")
    assert without.exit_code == 2 and "--initial" in json.loads(without.stdout)["error"]["hint"]
    done = run(trained, home / "pissa-lora", "--base", home / "base", "--initial", initial, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rank"] == 8
    assert initial.joinpath("adapter_config.json").read_bytes() == before, "the creator's own folders are only read"
    # PEFT computes the trained adapter on the base that PiSSA left, the converted one on the base as it was.
    assert torch.allclose(logits(home / "base", trained), logits(home / "base", home / "pissa-lora"), atol=1e-3)
    other = run(trained, home / "other", "--base", home / "base", "--initial", home / "base", "--json")
    assert other.exit_code == 2 and not (home / "other").exists()


@pytest.mark.parametrize(
    ("method", "words"), [("ia3", "PEFT has no conversion of IA3 to LoRA"), ("lora", "is a LoRA already")]
)
def test_what_cannot_or_need_not_be_converted_is_said(home: Path, method: str, words: str) -> None:
    source = write_method(home / method, home / "base", method)
    result = run(source, home / "none", "--base", home / "base", "--json")
    assert result.exit_code == 2 and words in json.loads(result.stdout)["error"]["message"]
    assert not (home / "none").exists()


def test_without_the_extra_the_command_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft_bridge", None)
    result = run(home / "base", home / "none", "--base", home / "base", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["hint"] == "pip install 'intarsia[convert]'"
