"""Whole saved modules become trained tokens that PEFT computes alike; others are refused with their number of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from sealed_weights import BaseSpec, FormatError, IntakeError, check_adapter
from sealed_weights.intake.saved_modules import rewrite
from tests.serving.models.families import build

IDS = torch.tensor([[7, 3, 44, 9, 250, 3]])


def saved(
    folder: Path, rows: dict[str, list[int]], *, tied: bool, dtype: torch.dtype = torch.float32, **more: Any
) -> Any:
    """Save a base in bfloat16 and an adapter whose embedding or head differs in some rows; returns its logits."""
    model = build("qwen3", tie_word_embeddings=tied).to(torch.bfloat16)
    model.save_pretrained(folder / "base")
    settings = {"target_modules": ["q_proj"], "modules_to_save": list(rows) or None, **more}
    peft = get_peft_model(model.to(dtype), LoraConfig(task_type="CAUSAL_LM", r=2, **settings))
    with torch.no_grad():
        for module, ids in rows.items():
            wrapper = next(found for name, found in peft.named_modules() if name.endswith(module))
            wrapper.modules_to_save["default"].weight[ids] += 0.5 if module == "lm_head" else 0.25
    peft.save_pretrained(folder / "adapter")
    return logits(peft)


def logits(peft: Any) -> torch.Tensor:
    with torch.inference_mode():
        return peft.eval()(IDS).logits


def again(folder: Path, adapter: str, dtype: torch.dtype = torch.float32, **changes: Any) -> torch.Tensor:
    model = build("qwen3", **changes).to(torch.bfloat16).to(dtype)
    return logits(PeftModel.from_pretrained(model, folder / adapter))


CASES: dict[str, tuple[dict[str, list[int]], bool]] = {
    "embedding": ({"embed_tokens": [3, 44]}, False),
    "head": ({"lm_head": [3, 299]}, False),
    "both": ({"embed_tokens": [7], "lm_head": [9, 250]}, False),
    "a tied base's embedding alone": ({"embed_tokens": [3, 44]}, True),
    "a tied base's head alone": ({"lm_head": [3, 44]}, True),
    "both apart on a tied base": ({"embed_tokens": [3, 44], "lm_head": [3, 44]}, True),
    "one row apart on a tied base": ({"embed_tokens": [3], "lm_head": [3]}, True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_the_rewritten_adapter_is_accepted_and_computes_the_same(name: str, tmp_path: Path) -> None:
    rows, tied = CASES[name]
    expected = saved(tmp_path, rows, tied=tied)
    raw = json.loads((tmp_path / "base" / "config.json").read_text())
    spec = BaseSpec.from_hf_config(raw, bytes(32))
    with pytest.raises(IntakeError, match=r"whole saved modules are not served"):
        check_adapter(tmp_path / "adapter", spec)
    written = rewrite(tmp_path / "adapter", tmp_path / "base", tmp_path / "out")
    assert all(set(ids) <= set(written.tokens[module]) for module, ids in rows.items() if ids)
    assert check_adapter(tmp_path / "out", spec).extras
    torch.testing.assert_close(again(tmp_path, "out", tie_word_embeddings=tied), expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_saved_head_that_was_not_changed_leaves_an_adapter_that_changes_nothing(tmp_path: Path) -> None:
    saved(tmp_path, {"lm_head": []}, tied=False)
    assert not any(rewrite(tmp_path / "adapter", tmp_path / "base", tmp_path / "out").tokens.values())
    raw = json.loads((tmp_path / "base" / "config.json").read_text())
    with pytest.raises(IntakeError, match="changes nothing"):
        check_adapter(tmp_path / "out", BaseSpec.from_hf_config(raw, bytes(32)))


@pytest.mark.filterwarnings("ignore")
def test_the_copy_that_peft_adds_beside_an_adapted_head_is_left_out(tmp_path: Path) -> None:
    saved(tmp_path, {}, tied=False, dtype=torch.bfloat16, target_modules=["q_proj", "lm_head"])
    written = rewrite(tmp_path / "adapter", tmp_path / "base", tmp_path / "out")
    assert written.dropped == ("base_model.model.lm_head.base_layer.weight",) and not written.tokens
    raw = json.loads((tmp_path / "base" / "config.json").read_text())
    assert check_adapter(tmp_path / "out", BaseSpec.from_hf_config(raw, bytes(32))).extras.kinds == ("an adapted head",)


@pytest.mark.filterwarnings("ignore")
def test_more_rows_than_are_served_are_refused_with_their_number_and_nothing_is_written(tmp_path: Path) -> None:
    saved(tmp_path, {"lm_head": list(range(65))}, tied=False)
    with pytest.raises(IntakeError, match="65 of 300 rows differ from the base's, at most 64 are served"):
        rewrite(tmp_path / "adapter", tmp_path / "base", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"config\.json"):
        rewrite(tmp_path / "adapter", tmp_path / "empty", tmp_path / "out")
    (tmp_path / "base" / "model.safetensors").write_bytes(b"12345678{}")
    with pytest.raises(FormatError, match="safetensors"):
        rewrite(tmp_path / "adapter", tmp_path / "base", tmp_path / "out")
    assert not (tmp_path / "out").exists()
