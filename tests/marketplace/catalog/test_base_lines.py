"""Base lines: a reference and its checkpoints, added by staff from folders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from marketplace.accounts.errors import InvalidInput
from marketplace.catalog import selectors
from marketplace.catalog.models import BaseLine, BaseModel
from protocol.checkpoints import ComputedIn, checkpoint_fingerprint
from sealed_weights import BaseSpec, base_fingerprint
from tests.sealed_weights.factories import HF_CONFIG

pytestmark = pytest.mark.django_db
CONFIG = {**HF_CONFIG, "max_position_embeddings": 64, "vocab_size": 32, "torch_dtype": "bfloat16"}


def folder(path: Path, name: str, weights: bytes = b"weights", **config: Any) -> Path:
    made = path / name
    made.mkdir()
    whole = {**CONFIG, **config}
    (made / "config.json").write_text(json.dumps(whole))
    (made / "model.safetensors").write_bytes(tensors(whole, weights))
    (made / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 31}}}))
    return made


def tensors(config: dict[str, Any], weights: bytes) -> bytes:
    """A safetensors file of one-byte values with every tensor that the config asks for; `weights` are its first."""
    spec = BaseSpec.from_hf_config({**config, "model_type": "llama"}, bytes(32))
    shapes = {name: (spec.vocab_size, spec.hidden_size) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    for layer in range(spec.num_layers):
        shapes |= {f"model.layers.{layer}.{module}.weight": shape for module, shape in spec.shapes.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "U8", "shape": list(shape), "data_offsets": [end, end := end + math.prod(shape)]}
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + weights.ljust(end, b"\0")


def add(*arguments: object) -> None:
    call_command("add_base_model", *(str(one) for one in arguments))


def test_a_folder_alone_is_a_line_of_its_own(tmp_path: Path) -> None:
    made = folder(tmp_path, "tiny")
    add(made)
    add(made)
    base = BaseModel.objects.get()
    assert (base.line.name, base.is_reference, base.precision) == ("tiny", True, "bfloat16")
    assert base.fingerprint == base_fingerprint(made).hex()
    add(folder(tmp_path, "other", b"other"), "--name", "tiny")
    assert sorted(BaseLine.objects.values_list("name", flat=True))[0] == "tiny" and BaseLine.objects.count() == 2


def test_checkpoints_join_a_line_with_their_precision(tmp_path: Path) -> None:
    reference = folder(tmp_path, "tiny")
    add(reference, "--line", "tiny", "--reference")
    quantized = {"quant_method": "gptq", "bits": 4}
    add(folder(tmp_path, "tiny-gptq", b"4", quantization_config=quantized), "--line", "tiny", "--checkpoint")
    for _ in range(2):
        add(reference, "--line", "tiny", "--checkpoint", "--dtype", "int8")
    found = {base.name: base for base in BaseModel.objects.filter(line__name="tiny")}
    assert {name: base.precision for name, base in found.items()} == {
        "tiny": "bfloat16",
        "tiny-gptq": "gptq, 4 bits",
        "tiny-weights-int8-kv-int8": "bfloat16, weights int8, KV int8",
    }
    assert [name for name, base in found.items() if base.is_reference] == ["tiny"]
    files = base_fingerprint(reference).hex()
    int8 = checkpoint_fingerprint(files, ComputedIn("int8", "int8"))
    assert found["tiny-weights-int8-kv-int8"].fingerprint == int8 != files

    # Creators see the line, and whatever they name of it, adapters are made for its reference.
    assert [base.name for base in selectors.bases()] == ["tiny"]
    for name in (None, "tiny", "tiny-gptq", int8):
        assert selectors.chosen_base(name) == found["tiny"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 32}, "other shapes"),
        ({"vocab_size": 33}, "other shapes"),
        ({"num_hidden_layers": 3}, "other shapes"),
        ({"max_position_embeddings": 32}, "less than the reference's 64"),
        ({"model_type": "mamba"}, "model_type"),
    ],
)
def test_a_model_that_the_lines_adapters_do_not_fit_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    add(folder(tmp_path, "tiny"))
    with pytest.raises(CommandError, match=message):
        add(folder(tmp_path, "smaller", b"4", **config), "--line", "tiny", "--checkpoint")
    assert BaseModel.objects.count() == 1


def test_a_place_in_a_line_is_said_clearly_and_taken_once(tmp_path: Path) -> None:
    first, second, third = (folder(tmp_path, name, name.encode()) for name in ("one", "two", "three"))
    add(first)
    for arguments in (
        (second, "--line", "one"),
        (second, "--checkpoint"),
        (second, "--line", "none", "--checkpoint"),
        (second, "--line", "one", "--reference"),  # it has one
        (second, "--line", "one", "--checkpoint", "--name", "one"),
        (second, "--kv-dtype", "int4"),
    ):
        with pytest.raises(CommandError):
            add(*arguments)
    add(second, "--line", "one", "--checkpoint")
    add(third)
    with pytest.raises(CommandError, match="line one already"):
        add(second, "--line", "three", "--checkpoint")
    with pytest.raises(CommandError, match="line one already"):
        add(second)
    with pytest.raises(InvalidInput):
        selectors.chosen_base(None)  # two lines: the creator says which
    assert BaseModel.objects.count() == 3
