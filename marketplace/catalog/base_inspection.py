"""A base model's folder, looked at before replicas are asked to serve it: family, shapes, memory, tokenizer.

Everything is read from headers and JSON: no weight is loaded and no code of the folder runs. A config or missing tensor
that a replica would refuse at its start is refused here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from marketplace.accounts.errors import InvalidInput
from sealed_weights import BaseSpec, IntakeError
from sealed_weights.intake.architectures import FULL, SLIDING, architecture_of

_MAX_JSON = 64 << 20  # tokenizer.json of 256k entries is 33 MB
_MAX_HEADER = 64 << 20
_QUANTIZATIONS = ("fp8", "compressed-tensors", "gptq", "awq", "gguf")
RANK = 16  # of the adapter whose memory is told


@dataclass(frozen=True, slots=True)
class FolderReport:
    """The contents of a folder. Sizes are bytes: `kv_bytes` of one token in 16 bits, `adapter_bytes` of rank 16."""

    family: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    vocabulary: int
    context_length: int
    parameters: int
    weight_bytes: int
    kv_bytes: int
    adapter_bytes: int
    tied: bool
    attention: str
    has_chat_template: bool


def inspect_base_folder(directory: Path) -> FolderReport:
    """Return what is in a Hugging Face folder. Raises InvalidInput, which names the file and says what is served."""
    config = _json(directory / "config.json", directory)
    try:
        spec = BaseSpec.from_hf_config(config, bytes(32))
        attention = _attention(config)
    except IntakeError as error:
        raise _refused(directory, f"{error.field}: {error.rule}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise _refused(directory, f"config.json: {error}") from None
    tensors = _tensors(directory)
    _check_tensors(directory, config, spec, tensors)
    _check_tokenizer(directory, spec.vocab_size)
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head = int(config.get("head_dim") or spec.hidden_size // heads)
    return FolderReport(
        family=str(config["model_type"]),
        layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=spec.vocab_size,
        context_length=int(config.get("max_position_embeddings") or 0),
        parameters=sum(prod(shape) for shape, _ in tensors.values()),
        weight_bytes=sum(size for _, size in tensors.values()),
        kv_bytes=spec.num_layers * 2 * kv_heads * head * 2,
        adapter_bytes=spec.num_layers * sum(RANK * (out + inputs) for out, inputs in spec.shapes.values()) * 2,
        tied=spec.tied,
        attention=attention,
        has_chat_template=_has_chat_template(directory),
    )


def _refused(directory: Path, why: str) -> InvalidInput:
    return InvalidInput(f"{directory}: {why}", field="base")


def _json(path: Path, directory: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise _refused(directory, f"{path.name} is larger than {_MAX_JSON >> 20} MiB")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _refused(directory, f"{path.name} is missing") from None
    except (OSError, ValueError, RecursionError):
        raise _refused(directory, f"{path.name} cannot be read as JSON") from None
    if not isinstance(found, dict):
        raise _refused(directory, f"{path.name} must be a JSON object")
    return found


def _attention(config: Mapping[str, Any]) -> str:
    """Return in words what the layers attend to; raises ValueError for what is not computed."""
    family = architecture_of(config)
    layers = int(config["num_hidden_layers"])
    config = {**family.defaults, **config}
    family.check_activation(config)
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
    if quantized is not None and method not in _QUANTIZATIONS:
        raise ValueError(f"quantization_config.quant_method {method!r}: only {', '.join(_QUANTIZATIONS)} are served")
    written = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kinds = [written[kind] for kind in (FULL, SLIDING) if isinstance(written.get(kind), Mapping)] or [written]
    ropes = [family.rope_kind(config, parameters) for parameters in kinds]
    bare, windows = family.bare(config, layers), family.windows(config, layers)
    parts = [f"rotary embedding {' and '.join(dict.fromkeys(ropes))}"]
    if any(bare):
        parts.append(f"none in {sum(bare)} layers")
    if found := sorted({window for window in windows if window}):
        limited = sum(window is not None for window in windows)
        parts.append(f"a window of {found[0]:,} tokens in {limited} of {layers} layers")
    parts += ["biases of queries, keys and values"] if family.qkv_bias else []
    parts += ["normed queries and keys"] if family.qk_norm else []
    return ", ".join(parts)


def _tensors(directory: Path) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return shape and bytes of every tensor, by name, from the files' headers."""
    found: dict[str, tuple[tuple[int, ...], int]] = {}
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise _refused(directory, "no .safetensors file; transformers' save_pretrained writes some")
    for file in files:
        try:
            found.update(_header(file))
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            raise _refused(directory, f"{file.name} is no whole safetensors file: download it again") from None
    return found


def _header(file: Path) -> Iterator[tuple[str, tuple[tuple[int, ...], int]]]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > min(_MAX_HEADER, size):
            raise ValueError("the header is longer than the file, or than any")
        header = json.loads(opened.read(length))
    entries = {name: value for name, value in header.items() if name != "__metadata__"}
    if 8 + length + max(int(value["data_offsets"][1]) for value in entries.values()) != size:
        raise ValueError("the file was cut off")
    for name, value in entries.items():
        first, last = value["data_offsets"]
        yield name, (tuple(int(one) for one in value["shape"]), int(last) - int(first))


def _check_tensors(
    directory: Path, config: Mapping[str, Any], spec: BaseSpec, tensors: Mapping[str, tuple[tuple[int, ...], int]]
) -> None:
    if config.get("quantization_config") is not None:
        return  # packed linears have other names and shapes, which the replica checks
    wanted: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size)}
    if not spec.tied:
        wanted["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    for layer in range(spec.num_layers):
        for module, (out, inputs) in spec.shapes.items():
            wanted[f"model.layers.{layer}.{module}.weight"] = (out, inputs)
            if module in spec.biased:
                wanted[f"model.layers.{layer}.{module}.bias"] = (out,)
    for name, shape in wanted.items():
        if name not in tensors:
            raise _refused(
                directory, f"the weights have no {name}: a file is missing, or config.json is of another model"
            )
        if tensors[name][0] != shape:
            raise _refused(directory, f"{name} has the shape {list(tensors[name][0])}, config.json says {list(shape)}")


def _check_tokenizer(directory: Path, vocabulary: int) -> None:
    tokenizer = _json(directory / "tokenizer.json", directory)
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, (dict, list)) or not vocab:
        raise _refused(directory, "tokenizer.json has no vocabulary")
    # Added tokens are left out: Gemma 3 has one beyond its embedding, for images, and never writes it.
    last = max(vocab.values()) if isinstance(vocab, dict) else len(vocab) - 1
    if last >= vocabulary:
        raise _refused(
            directory, f"tokenizer.json has the token {last}, the model {vocabulary} tokens: it is of another model"
        )


def _has_chat_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").is_file():
        return True
    path = directory / "tokenizer_config.json"
    return path.is_file() and bool(_json(path, directory).get("chat_template"))
