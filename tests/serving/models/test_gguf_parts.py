"""GGUF files of newer exporters, of other tools, and parts of files: read right, or refused by what is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from serving.models.config import ModelConfig
from serving.models.convert_gguf import ConversionError, convert
from serving.models.gguf_rope import rope_scaling
from serving.models.rope import inverse_frequencies
from tests.serving.models import tiny_gguf

DIMS = tiny_gguf.HIDDEN // tiny_gguf.HEADS


def llama3_divisors(factor: float, original: int, theta: float = 10_000.0, dims: int = DIMS) -> npt.NDArray[np.float32]:
    """As llama.cpp's exporter writes `rope_freqs.weight`, in its own words."""
    out = []
    for freq in 1.0 / theta ** (np.arange(0, dims, 2, dtype=np.float32) / dims):
        wavelength = 2 * math.pi / freq
        if wavelength < original / 4.0:
            out.append(1.0)
        elif wavelength > original / 1.0:
            out.append(factor)
        else:
            smooth = (original / wavelength - 1.0) / (4.0 - 1.0)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def converted(tmp_path: Path, **changes: Any) -> Path:
    source = tiny_gguf.write(tmp_path / "source.gguf", **changes)
    convert(source, tmp_path / "dest", lambda _: None, packed=True)
    return tmp_path / "dest"


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (4.0, 2048)])
def test_the_frequencies_of_llama_3_1_become_its_rope_type(tmp_path: Path, factor: float, original: int) -> None:
    folder = converted(tmp_path, extra={"rope_freqs.weight": llama3_divisors(factor, original)})
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), torch.device("cpu"))
    torch.testing.assert_close(inverse_frequencies(ModelConfig.from_dir(folder).ropes[0]), theirs, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("theta", "factor", "dims"), [(500_000.0, 8.0, 128), (500_000.0, 32.0, 64)])
def test_the_released_models_numbers_are_found(theta: float, factor: float, dims: int) -> None:
    found = rope_scaling({}, llama3_divisors(factor, 8192, theta, dims), theta=theta, dims=dims)
    assert found is not None and (found["factor"], found["original_max_position_embeddings"]) == (factor, 8192)


def test_frequencies_that_are_not_divided_and_plain_scaling_are_read(tmp_path: Path) -> None:
    for name in ("plain", "linear"):
        (tmp_path / name).mkdir()
    plain = converted(
        tmp_path / "plain",
        extra={"rope_freqs.weight": np.ones(DIMS // 2, np.float32)},
        keys={"llama.rope.scaling.type": "none", "llama.expert_count": 0},
    )
    assert "rope_scaling" not in json.loads((plain / "config.json").read_text())
    linear = converted(
        tmp_path / "linear", keys={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    )
    assert json.loads((linear / "config.json").read_text())["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert ModelConfig.from_dir(linear).ropes[0].divisors == (4.0,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"without": ["blk.1.ffn_up.weight"]}, "lacks blk.1.ffn_up.weight"),
        ({"without": [f"blk.1.{site}.weight" for site in ("attn_q", "attn_k")]}, "blk.1.attn_k.weight and 1 more"),
        ({"without": ["output_norm.weight"]}, "lacks output_norm.weight"),
        ({"without": ["token_embd.weight"]}, "lacks token_embd.weight"),
        ({"extra": {"blk.2.attn_norm.weight": np.ones(256, np.float32)}}, "'blk.2.attn_norm.weight' is of no layer"),
        ({"extra": {"blk.0.attn_q.bias": np.ones(256, np.float32)}}, "'blk.0.attn_q.bias'"),
        ({"extra": {"mm.0.weight": np.ones(4, np.float32)}}, "'mm.0.weight'"),
        ({"extra": {"rope_freqs.weight": np.linspace(1, 9, DIMS // 2, dtype=np.float32)}}, "rope_freqs.weight"),
        ({"extra": {"rope_freqs.weight": np.full(7, 2.0, np.float32)}}, "rope_freqs.weight has the shape"),
        (
            {
                "extra": {"rope_freqs.weight": llama3_divisors(8.0, 8192)},
                "keys": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
            },
            "beside rope_freqs.weight",
        ),
        ({"keys": {"llama.rope.scaling.type": "yarn"}}, "'yarn'"),
        ({"keys": {"llama.rope.scaling.yarn_log_multiplier": 0.5}}, "yarn_log_multiplier"),
        ({"keys": {"llama.expert_count": 8}}, "llama.expert_count"),
        ({"keys": {"llama.attention.sliding_window": 4096}}, "llama.attention.sliding_window"),
        ({"keys": {"llama.logit_scale": 8.0}}, "llama.logit_scale"),
        ({"keys": {"llama.attention.key_length": 128}}, "llama.attention.key_length"),
        ({"keys": {"split.count": 3, "split.no": 1}}, "part 2 of 3"),
    ],
)
def test_what_is_missing_or_foreign_is_named_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConversionError) as refused:
        converted(tmp_path, **changes)
    assert said in str(refused.value)
    assert not (tmp_path / "dest").exists()
