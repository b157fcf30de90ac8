"""A llama in a GGUF file of every kind of block that stays packed, and one that does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from serving.models.gguf_blocks import BLOCKS

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS = 256, 512, 270, 4, 2
# Bytes where a block has its float16 scales and minima.
_FLOATS = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}


def random_blocks(kind: str, outputs: int, inputs: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return rows of random blocks, uint8 [outputs, bytes]; numbers are about as large as weights."""
    random = np.random.default_rng(seed)
    size, nbytes = BLOCKS[kind]
    blocks = random.integers(0, 256, (outputs, inputs // size, nbytes), dtype=np.uint8)
    small = {"Q4_K": 3e-5, "Q6_K": 3e-5, "Q8_0": 1e-3}.get(kind, 1e-2)
    for at in _FLOATS[kind]:
        floats = (random.uniform(0.5, 1.0, blocks.shape[:2]) * small * (-4 if at else 1)).astype(np.float16)
        if kind == "Q4_K":
            floats = np.abs(floats)
        blocks[..., at : at + 2] = floats.view(np.uint8).reshape(*blocks.shape[:2], 2)
    return blocks.reshape(outputs, -1)


def write(
    path: Path,
    *,
    without: Collection[str] = (),
    extra: Mapping[str, npt.NDArray[np.float32]] = MappingProxyType({}),
    keys: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write the file, two layers.

    without: names of tensors to leave out; extra: tensors beside a llama's, by name; keys: further keys, by name
    """
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in keys.items():
        add = {str: writer.add_string, bool: writer.add_bool, float: writer.add_float32, int: writer.add_uint32}
        add[type(value)](name, value)
    _leave_out(writer, without)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(2)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(256)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", *(f"t{index}" for index in range(VOCAB - 3))])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b"])
    _add(writer, "token_embd", "Q8_0", VOCAB, HIDDEN)
    for layer in range(2):
        prefix, kv = f"blk.{layer}.", HIDDEN // HEADS * KV_HEADS
        sites: tuple[tuple[str, str, int, int], ...] = (
            ("attn_q", "Q4_K", HIDDEN, HIDDEN),
            ("attn_k", "Q4_K", kv, HIDDEN),
            ("attn_v", "Q6_K", kv, HIDDEN),
            ("attn_output", "Q5_0", HIDDEN, HIDDEN),
            ("ffn_gate", "Q4_0", INNER, HIDDEN),
            ("ffn_up", "Q4_1", INNER, HIDDEN),
            ("ffn_down", "Q6_K", HIDDEN, INNER),
        )
        for index, (name, kind, outputs, inputs) in enumerate(sites):
            _add(writer, prefix + name, kind, outputs, inputs, seed=10 * layer + index)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{prefix}{name}.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for name, values in extra.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _leave_out(writer: Any, names: Collection[str]) -> None:
    add = writer.add_tensor

    def unless_named(name: str, *arguments: Any, **options: Any) -> None:
        if name not in names:
            add(name, *arguments, **options)

    writer.add_tensor = unless_named


def _add(writer: Any, name: str, kind: str, outputs: int, inputs: int, seed: int = 0) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    if kind in BLOCKS:
        rows = random_blocks(kind, outputs, inputs, seed)
    else:
        values = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32) * 0.05
        rows = gguf.quantize(values, type_)
    writer.add_tensor(f"{name}.weight", rows, raw_dtype=type_)
