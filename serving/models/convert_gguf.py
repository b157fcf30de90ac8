"""`python -m serving.models.convert_gguf [--packed] SRC.gguf DEST_DIR`: a llama in GGUF becomes a Hugging Face folder.

Weights are dequantised and stored as bfloat16; with --packed, blocks that `gguf_blocks` reads stay as they are. The
folder appears whole or not at all, and a second run on the same file does nothing. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from serving.models import gguf_blocks
from serving.models.gguf_rope import ROPE_FREQS, rope_scaling
from serving.models.gguf_tokenizer import TokenizerConversionError, convert_tokenizer

MARKER = "converted.json"
# Raised when the output changes for the same input: folders of an older format are then converted anew.
FORMAT = 1

# Types of the numbers that every file has beside its blocks.
_PLAIN = ("F32", "F16", "BF16")
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


# Keys of a llama that are read, or that change nothing.
_KEYS = {
    *("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
    *("attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base"),
    *("attention.causal", "tensor_data_layout"),
}


class ConversionError(ValueError):
    """A file that cannot be converted, or a destination folder that this program did not write."""


def convert(source: Path, dest: Path, report: Callable[[str], None] = print, *, packed: bool = False) -> bool:
    """Convert `source` into the folder `dest`; return False if it was converted already.

    packed: keep blocks of 4 and 8 bits as they are; the folder is another checkpoint then, with its own fingerprint

    Raises ConversionError for a file that is not a supported llama, or a destination that this program did not write.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    with (dest.parent / f".{dest.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second converter waits, then finds the work done
        stamp = {"format": FORMAT, "source_sha256": _sha256(source)} | ({"packed": True} if packed else {})
        if dest.exists() and any(dest.iterdir()):
            if not (dest / MARKER).is_file():
                raise ConversionError(f"{dest} holds something else; choose another folder or remove it")
            if json.loads((dest / MARKER).read_text()) == stamp:
                report(f"{dest} is already converted from {source.name}")
                return False
        partial = dest.parent / f".{dest.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _write_folder(source, partial, report, packed)
        (partial / MARKER).write_text(json.dumps(stamp))
        if dest.exists():
            shutil.rmtree(dest)
        partial.rename(dest)
    report(f"wrote {dest}")
    return True


def _write_folder(source: Path, folder: Path, report: Callable[[str], None], packed: bool) -> None:
    report(f"reading {source.name} ({source.stat().st_size >> 20} MiB)")
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError) as error:
        raise ConversionError(f"{source}: not a GGUF file: {error}") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise ConversionError(f"{source}: architecture {fields.get('general.architecture')!r}, only llama is converted")
    _refuse_part(source, fields)
    names = {tensor.name for tensor in reader.tensors}
    config = _model_config(fields, tied="output.weight" not in names)
    _check_names(names, config["num_hidden_layers"])
    _add_rope(config, fields, reader)
    if packed:
        config["quantization_config"] = {"quant_method": "gguf"}
    report("writing tokenizer")
    tokenizer, tokenizer_config = convert_tokenizer(fields)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_json(folder / "config.json", config)
    ids: dict[str, Any] = {
        name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config
    }
    _write_json(folder / "generation_config.json", ids)
    save_file(_read_tensors(reader, config, report, packed), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # public weights; the library writes 0600


def _read_tensors(
    reader: gguf.GGUFReader, config: dict[str, Any], report: Callable[[str], None], packed: bool
) -> dict[str, torch.Tensor]:
    """Return the tensors of the folder: blocks as bytes [rows, bytes of a row], everything else as bfloat16."""
    tensors, widened = {}, dict[str, int]()
    for count, tensor in enumerate(reader.tensors, 1):
        if tensor.name == ROPE_FREQS:  # config.json says it
            continue
        kind, name = tensor.tensor_type.name, _hf_name(tensor.name)
        keeps = packed and kind in gguf_blocks.BLOCKS
        values = tensor.data if keeps else gguf.dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            heads = config["num_attention_heads" if ".attn_q." in tensor.name else "num_key_value_heads"]
            values = _half_split(values, heads)
        data = torch.from_numpy(np.array(values, order="C"))
        tensors[f"{name}_{kind.lower()}" if keeps else name] = data if keeps else data.to(torch.bfloat16)
        if packed and not keeps and kind not in _PLAIN:
            widened[kind] = widened.get(kind, 0) + 1
        if count % 90 == 0 or count == len(reader.tensors):
            report(f"{'read' if packed else 'dequantised'} {count} of {len(reader.tensors)} tensors")
    for kind, number in widened.items():
        report(f"{number} tensors in {kind}, which has no packed form here, are stored as bfloat16")
    return tensors


def _half_split(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows from GGUF's rotary pairs (0, 1), (2, 3), … to Hugging Face's (0, d/2), (1, d/2 + 1), …"""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _hf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if kind == "weight" and stem in _TOP:
        return f"{_TOP[stem]}.weight"
    parts = stem.split(".")
    if kind == "weight" and len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.weight"
    raise ConversionError(f"tensor {name!r} has no place in a llama")


def _refuse_part(source: Path, fields: dict[str, Any]) -> None:
    """Raise ConversionError for one file of several, of which the others would be missing."""
    if (parts := int(fields.get("split.count") or 1)) > 1:
        number = int(fields.get("split.no") or 0) + 1
        raise ConversionError(
            f"{source}: this is part {number} of {parts} of a model; join them first (`llama-gguf-split --merge` of "
            "llama.cpp), and convert the file that comes of it"
        )


def _check_names(names: set[str], layers: int) -> None:
    """Raise ConversionError for a tensor that is missing, or that a llama of so many layers does not have."""
    for name in sorted(names - {ROPE_FREQS}):
        _hf_name(name)
    sites = {f"blk.{layer}.{site}.weight" for layer in range(layers) for site in _LAYER}
    needed = sites | {"token_embd.weight", "output_norm.weight"}
    if missing := sorted(needed - names):
        raise ConversionError(
            f"the file lacks {missing[0]}" + (f" and {len(missing) - 1} more tensors" if missing[1:] else "")
        )
    if foreign := sorted(names - needed - {"output.weight", ROPE_FREQS}):
        raise ConversionError(f"tensor {foreign[0]!r} is of no layer: llama.block_count is {layers}")


def _add_rope(config: dict[str, Any], fields: dict[str, Any], reader: gguf.GGUFReader) -> None:
    """Write the rotary embedding that keys and `rope_freqs.weight` say together. Raises ConversionError."""
    found = [tensor for tensor in reader.tensors if tensor.name == ROPE_FREQS]
    divisors = gguf.dequantize(found[0].data, found[0].tensor_type) if found else None
    try:
        scaling = rope_scaling(fields, divisors, theta=config["rope_theta"], dims=config["head_dim"])
    except ValueError as error:
        raise ConversionError(str(error)) from None
    if scaling is not None:
        config["rope_scaling"] = scaling


def _refuse_unknown(fields: dict[str, Any]) -> None:
    """Raise ConversionError for a key of the model that changes what it computes and is not read here."""
    for key, value in fields.items():
        name = key.removeprefix("llama.")
        if name == key or name in _KEYS or name.startswith("rope.scaling.") or not np.any(value):
            continue
        raise ConversionError(f"{key} is not supported")
    heads, length = fields.get("llama.attention.head_count"), fields.get("llama.embedding_length")
    if heads and length:
        dims = fields.get("llama.rope.dimension_count", length // heads)
        for key in ("llama.attention.key_length", "llama.attention.value_length"):
            if fields.get(key, dims) != dims:
                raise ConversionError(f"{key} is {fields[key]}: only whole heads of {dims} dimensions are turned")


def _model_config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """Return config.json as Hugging Face writes it, without what `_add_rope` adds."""
    _refuse_unknown(fields)
    try:
        heads = fields["llama.attention.head_count"]
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "mlp_bias": False,
            "hidden_act": "silu",
            "hidden_size": fields["llama.embedding_length"],
            "intermediate_size": fields["llama.feed_forward_length"],
            "num_hidden_layers": fields["llama.block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
            "head_dim": fields.get("llama.rope.dimension_count", fields["llama.embedding_length"] // heads),
            "max_position_embeddings": fields["llama.context_length"],
            # GGUF stores float32: the shortest decimal of that value is the intended number.
            "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
            "rope_theta": fields.get("llama.rope.freq_base", 10000.0),
            "tie_word_embeddings": tied,
            "vocab_size": fields.get("llama.vocab_size", len(fields["tokenizer.ggml.tokens"])),
            "torch_dtype": "bfloat16",
        }
    except KeyError as error:
        raise ConversionError(f"the file lacks {error}") from error
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if f"tokenizer.ggml.{key}_token_id" in fields:
            config[f"{name}_token_id"] = fields[f"tokenizer.ggml.{key}_token_id"]
    return config


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: list[str] | None = None) -> int:
    """Return exit code 1 when the file cannot be read or converted, with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m serving.models.convert_gguf", description=__doc__)
    parser.add_argument("source", type=Path, help="a .gguf file")
    parser.add_argument(
        "--packed", action="store_true", help=f"keep {', '.join(gguf_blocks.BLOCKS)} as they are, in place of bfloat16"
    )
    parser.add_argument("dest", type=Path, help="the Hugging Face folder to write")
    arguments = parser.parse_args(argv)
    try:
        convert(arguments.source, arguments.dest, lambda line: print(line, flush=True), packed=arguments.packed)
    except (ConversionError, TokenizerConversionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
