"""A GGUF file's byte-level BPE vocabulary as `tokenizer.json` and `tokenizer_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors


class TokenizerConversionError(ValueError):
    """A tokenizer of a kind that would be converted wrongly."""


# Token types of the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
_CONTROL = 3


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """Return the rule that splits text before merging; `name` is `tokenizer.ggml.pre`."""
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in ("gpt-2", "default"):
        return bytes_
    if name == "smollm":
        # Each digit is split off by itself. Digits come first, so that blanks before a number are cut like blanks at
        # the end of text.
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_])
    raise TokenizerConversionError(f"tokenizer.ggml.pre {name!r}: only smollm and gpt-2 are converted")


def convert_tokenizer(fields: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer and the content of tokenizer_config.json. `fields` is the metadata of the file.

    Raises TokenizerConversionError for anything but byte-level BPE with a known pre-tokenizer.
    """
    if fields.get("tokenizer.ggml.model") != "gpt2":
        raise TokenizerConversionError(f"tokenizer.ggml.model {fields.get('tokenizer.ggml.model')!r}: only gpt2 (BPE)")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(fields.get("tokenizer.ggml.pre", "default"))
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    special = {
        f"{name}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in fields
    }
    if fields.get("tokenizer.ggml.add_bos_token"):
        bos = special["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokens.index(bos))]
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        **special,
    }
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    return tokenizer, config
