"""DoRA, biases, trained tokens, and factors of embedding and head: complete and called for, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sealed_weights import AdapterSummary, IntakeError, check_adapter
from tests.sealed_weights.factories import BASE, Tensors, adapter_tensors, config_bytes, safetensors_bytes, tensor

BIASED = replace(BASE, biased=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
TIED = replace(BASE, tied=True)
P = "base_model.model."
MODULES = [f"model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in ("q_proj", "v_proj")]
EMBED_A, EMBED_B = f"{P}model.embed_tokens.lora_embedding_A", f"{P}model.embed_tokens.lora_embedding_B"
HEAD_A, HEAD_B = f"{P}lm_head.lora_A.weight", f"{P}lm_head.lora_B.weight"
ROWS = {module: f"{P}{module}.token_adapter.trainable_tokens_delta" for module in ("model.embed_tokens", "lm_head")}


def of(*shape: int, dtype: str = "F32") -> Any:
    return tensor(np.full(shape, 0.1), dtype)


def vectors(ending: str, modules: list[str] = MODULES) -> Tensors:
    return {f"{P}{path}.{ending}": of(BASE.shapes[path.split(".", 3)[3]][0], dtype="BF16") for path in modules}


def check(more: Tensors, base: Any = BASE, **settings: Any) -> AdapterSummary:
    return check_adapter((config_bytes(settings), safetensors_bytes(adapter_tensors() | more)), base)


HEAD = {HEAD_A: of(2, 16), HEAD_B: of(40, 2)}
EMBED = {EMBED_A: of(2, 40), EMBED_B: of(16, 2)}
K_BIASES = vectors("bias", [f"model.layers.{layer}.self_attn.k_proj" for layer in (0, 1)])
ACCEPTED: dict[str, tuple[Tensors, Any, dict[str, Any], tuple[str, ...]]] = {
    "DoRA": (vectors("lora_magnitude_vector"), BASE, {"use_dora": True}, ("DoRA",)),
    "biases": (vectors("base_layer.bias"), BIASED, {"bias": "lora_only"}, ("trained biases",)),
    "all biases": (vectors("base_layer.bias") | K_BIASES, BIASED, {"bias": "all"}, ("trained biases",)),
    "no biases to train": ({}, BASE, {"bias": "all"}, ()),
    "biases of B": (vectors("lora_B.bias"), BASE, {"lora_bias": True}, ("trained biases",)),
    "head": (HEAD, BASE, {}, ("an adapted head",)),
    "embedding": (EMBED, BASE, {}, ("an adapted embedding",)),
    "tied": (EMBED | HEAD, TIED, {"ensure_weight_tying": True}, ("an adapted embedding", "an adapted head")),
    "tokens": (
        {ROWS["model.embed_tokens"]: of(2, 16)},
        BASE,
        {"trainable_token_indices": [9, 4]},
        ("2 trained token rows",),
    ),
    "tokens of both": (
        {ROWS["model.embed_tokens"]: of(2, 16), ROWS["lm_head"]: of(1, 16)},
        BASE,
        {"trainable_token_indices": {"embed_tokens": [9, 4], "lm_head": [39]}},
        ("3 trained token rows",),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_peft_writes_is_accepted_and_named(name: str) -> None:
    more, base, settings, kinds = ACCEPTED[name]
    summary = check(more, base, **settings)
    assert summary.extras.kinds == kinds and list(summary.ranks) == MODULES


def test_a_tied_head_has_the_embedding_s_tokens_unless_it_has_its_own() -> None:
    rows = {ROWS["model.embed_tokens"]: of(1, 16)}
    assert check(rows, BASE, trainable_token_indices=[4]).extras.head_rows is None
    for settings in ([4], {"embed_tokens": [4], "lm_head": [4]}):
        extras = check(rows, TIED, trainable_token_indices=settings).extras
        assert extras.head_rows is extras.embedding_rows is not None
    own = check(
        rows | {ROWS["lm_head"]: of(1, 16)}, TIED, trainable_token_indices={"embed_tokens": [4], "lm_head": [5]}
    )
    assert own.extras.head_rows is not None and own.extras.head_rows.tokens == (5,)


Q0 = f"{P}{MODULES[0]}"
REFUSED: dict[str, tuple[Tensors, Any, dict[str, Any], str, str]] = {
    "a magnitude without DoRA": (vectors("lora_magnitude_vector"), BASE, {}, f"{Q0}.lora_magnitude_vector", "use_dora"),
    "no magnitudes": ({}, BASE, {"use_dora": True}, f"{Q0}.lora_magnitude_vector", "missing"),
    "a short magnitude": (
        vectors("lora_magnitude_vector") | {f"{Q0}.lora_magnitude_vector": of(15)},
        BASE,
        {"use_dora": True},
        f"{Q0}.lora_magnitude_vector",
        "shape",
    ),
    "a magnitude that is no number": (
        vectors("lora_magnitude_vector") | {f"{Q0}.lora_magnitude_vector": tensor(np.full(16, np.nan))},
        BASE,
        {"use_dora": True},
        f"{Q0}.lora_magnitude_vector",
        "finite",
    ),
    "a bias that the base has not": (
        vectors("base_layer.bias"),
        BASE,
        {"bias": "all"},
        f"{Q0}.base_layer.bias",
        "does not have",
    ),
    "a bias that was not trained": (
        vectors("base_layer.bias") | K_BIASES,
        BIASED,
        {"bias": "lora_only"},
        f"{P}model.layers.0.self_attn.k_proj.bias",
        "does not train",
    ),
    "no bias": ({}, BIASED, {"bias": "lora_only"}, f"{Q0}.bias", "missing"),
    "half a head": ({HEAD_A: of(2, 16)}, BASE, {}, HEAD_B, "missing"),
    "a head of another vocabulary": ({**HEAD, HEAD_B: of(41, 2)}, BASE, {}, HEAD_B, "shape"),
    "a tied embedding alone": (EMBED, TIED, {"ensure_weight_tying": True}, HEAD_A, "missing"),
    "DoRA of the embedding": (
        vectors("lora_magnitude_vector") | EMBED,
        BASE,
        {"use_dora": True},
        "adapter_config.json use_dora",
        "embedding",
    ),
    "tokens without rows": (
        {},
        BASE,
        {"trainable_token_indices": [1]},
        ROWS["model.embed_tokens"],
        "exactly if",
    ),
    "rows without tokens": ({ROWS["lm_head"]: of(1, 16)}, BASE, {}, ROWS["lm_head"], "exactly if"),
    "a token beyond the vocabulary": (
        {ROWS["model.embed_tokens"]: of(1, 16)},
        BASE,
        {"trainable_token_indices": [40]},
        "adapter_config.json trainable_token_indices",
        "below 40",
    ),
    "tokens and factors": (
        {ROWS["model.embed_tokens"]: of(1, 16), **EMBED},
        BASE,
        {"trainable_token_indices": [4]},
        "model.embed_tokens",
        "not both",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_or_not_called_for_is_refused(name: str) -> None:
    more, base, settings, field, rule = REFUSED[name]
    with pytest.raises(IntakeError) as refusal:
        check(more, base, **settings)
    assert refusal.value.field == field and rule in refusal.value.rule


def test_an_adapter_of_nothing_but_the_head_is_refused() -> None:
    with pytest.raises(IntakeError, match="must have factors of a linear module in some layer"):
        check_adapter((config_bytes({}), safetensors_bytes(HEAD)), BASE)
