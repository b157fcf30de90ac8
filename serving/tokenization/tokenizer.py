"""The model's tokenizer and chat template, read from a Hugging Face folder without `transformers`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from serving.tokenization.chat_template import ChatTemplate


class TokenizerError(ValueError):
    """Missing or malformed tokenizer files in a folder."""


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return value


def _content(token: Any) -> str | None:
    """Return the text of a special token, in tokenizer_config.json a string or an object with "content"."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A thread-safe encoder and decoder. eos_token_ids end a completion unless the request ignores them."""

    backend: tokenizers.Tokenizer
    eos_token_ids: frozenset[int]
    chat_template: ChatTemplate | None

    @classmethod
    def from_dir(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json, chat_template.jinja and the eos ids of the model's configs.

        Raises TokenizerError when tokenizer.json is missing or a file is malformed.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for any malformed file
            raise TokenizerError(f"{path}: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        config = _read_json(folder / "tokenizer_config.json")
        special = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _content(config.get(name))) is not None
        }
        eos: set[int] = set()
        for source in (_read_json(folder / "generation_config.json"), _read_json(folder / "config.json")):
            value = source.get("eos_token_id")
            eos.update(i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))
        if "eos_token" in special and (token_id := backend.token_to_id(special["eos_token"])) is not None:
            eos.add(token_id)
        template_file = folder / "chat_template.jinja"
        source_text = (
            template_file.read_text(encoding="utf-8") if template_file.is_file() else config.get("chat_template")
        )
        template = ChatTemplate(source_text, special) if isinstance(source_text, str) else None
        return cls(backend, frozenset(eos), template)

    @property
    def vocab_size(self) -> int:
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`. Chat templates write special tokens: add none to their output."""
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """Return one token as text, special tokens included; for logprobs."""
        return self.decode([token_id], skip_special_tokens=False)
