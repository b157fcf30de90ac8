"""`intarsia check --against-peft`: PEFT's own answers, to the prompts that a replica will see, beside the adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM
from typer.testing import CliRunner, Result

from creator_cli.main import app
from protocol.requests.bodies import ChatBody, Message
from sealed_weights import Reference, parse_contract, read_reference
from serving.http.contracts import applied
from serving.http.prompts import chat_messages
from serving.tokenization.tokenizer import Tokenizer
from tests.peft_bridge.folders import write_method, write_rows

CONTRACT: dict[str, Any] = {"contract": 1, "instructions": "Say it in one word.", "max_tokens": 12}


def check(folder: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["check", str(folder), *map(str, arguments), "--json"])


def kept(folder: Path) -> Reference:
    found = read_reference(folder)
    assert found is not None
    return found


@pytest.fixture
def adapter(home: Path, tmp_path: Path) -> Path:
    return write_method(tmp_path / "adapter", home / "base", "lora")


def test_pefts_answers_are_those_to_the_prompts_that_a_replica_makes(home: Path, adapter: Path) -> None:
    (adapter / "contract.json").write_text(json.dumps(CONTRACT))
    rows = write_rows(home / "rows.jsonl")
    done = check(adapter, "--against-peft", "--base", home / "base", "--rows", rows, "--count", "2")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["peft_answers"] == 2 and report["peft"]["dtype"] == "float32" and report["peft"]["left_out"] == 0
    assert [one["message"] for one in report["peft"]["answers"]] == ["row 0", "row 1"]

    tokenizer = Tokenizer.from_dir(home / "base")
    assert tokenizer.chat_template is not None
    model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(home / "base"), str(adapter)).eval()
    for number, one in enumerate(kept(adapter).answers):
        body = ChatBody(model="", messages=[Message("user", f"row {number}")])
        asked = applied(body, parse_contract(json.dumps(CONTRACT).encode()))
        text = tokenizer.chat_template.render(chat_messages(asked))
        assert one.prompt == tuple(tokenizer.encode(text, add_special_tokens=False))
        assert 1 <= len(one.tokens) <= CONTRACT["max_tokens"]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([one.prompt + one.tokens])).logits[0]
        assert tuple(logits[len(one.prompt) - 1 : -1].argmax(-1).tolist()) == one.tokens

    # What was answered by other weights is never sealed with these.
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: value * 0.5 for name, value in tensors.items()}, adapter / "adapter_model.safetensors")
    stale = check(adapter, "--base-config", home / "base" / "config.json")
    assert stale.exit_code == 2 and "--against-peft" in json.loads(stale.stdout)["error"]["message"]


def test_the_contracts_examples_are_answered_where_no_rows_are_named(home: Path, adapter: Path) -> None:
    without = check(adapter, "--against-peft", "--base", home / "base")
    assert without.exit_code == 2 and "--rows" in json.loads(without.stdout)["error"]["message"]
    assert not (adapter / "reference.json").exists()
    (adapter / "contract.json").write_text(
        json.dumps(CONTRACT | {"examples": [{"message": "Is it?", "answer": "yes"}]})
    )
    assert check(adapter, "--against-peft", "--base", home / "base").exit_code == 0
    assert len(kept(adapter).answers) == 1
    shown = CliRunner().invoke(app, ["check", str(adapter), "--against-peft", "--base", str(home / "base")])
    assert "Is it?" in shown.stdout and "PEFT's answer" in shown.stdout and "1 in float32, by PEFT" in shown.stdout


def test_an_adapter_that_changes_nothing_is_refused_and_keeps_no_answers(home: Path, adapter: Path) -> None:
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: value * 1e-15 for name, value in tensors.items()}, adapter / "adapter_model.safetensors")
    (adapter / "reference.json").write_text("{}")
    rows = write_rows(home / "rows.jsonl")
    refused = check(adapter, "--against-peft", "--base", home / "base", "--rows", rows)
    assert refused.exit_code == 2
    assert (
        "changes nothing: on 3 prompts PEFT computes the base's own logits"
        in json.loads(refused.stdout)["error"]["message"]
    )
    assert not (adapter / "reference.json").exists()


def test_peft_needs_the_bases_folder(adapter: Path, tmp_path: Path) -> None:
    refused = check(adapter, "--against-peft")
    assert refused.exit_code == 2 and json.loads(refused.stdout)["error"]["field"] == "base"
    (tmp_path / "empty").mkdir()
    assert check(adapter, "--against-peft", "--base", tmp_path / "empty").exit_code == 2
