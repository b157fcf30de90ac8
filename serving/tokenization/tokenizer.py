"""The model's tokenizer and chat template, read from a Hugging Face folder without `transformers`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from serving.tokenization.chat_template import ChatTemplate, ChatTemplateError
from serving.tokenization.output import ByteDetokenizer, Detokenizer, WindowDetokenizer
from serving.tokenization.token_bytes import TokenBytes


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
    token_bytes: TokenBytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_bytes", TokenBytes(self.backend))

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
        special = _special_tokens(config, _read_json(folder / "special_tokens_map.json"))
        eos: set[int] = set()
        for source in (_read_json(folder / "generation_config.json"), _read_json(folder / "config.json")):
            value = source.get("eos_token_id")
            eos.update(i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))
        if "eos_token" in special and (token_id := backend.token_to_id(special["eos_token"])) is not None:
            eos.add(token_id)
        return cls(backend, frozenset(eos), _chat_template(folder, config, special))

    @property
    def vocab_size(self) -> int:
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`. Chat templates write special tokens: add none to their output."""
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def detokenizer(self) -> Detokenizer:
        """Return a decoder for the tokens of one completion."""
        if self.token_bytes.byte_level:
            return ByteDetokenizer(self._shown_bytes)
        return WindowDetokenizer(self.decode, self._hidden)

    def _hidden(self, token_id: int) -> bool:
        """Return whether a token is special, or none: a model's vocabulary may be padded."""
        return token_id in self.token_bytes.special or self.backend.id_to_token(token_id) is None

    def _shown_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self.token_bytes.special else self.token_bytes.of(token_id)


def _chat_template(folder: Path, config: dict[str, Any], special: dict[str, str]) -> ChatTemplate | None:
    try:
        sources = chat_template_sources(folder, config)
        return ChatTemplate(sources, special) if sources else None
    except (ChatTemplateError, UnicodeDecodeError) as error:
        raise TokenizerError(
            f"{folder}: chat_template in tokenizer_config.json or chat_template.jinja: {error}; correct the template, "
            "or remove it to serve completions alone"
        ) from error


def _special_tokens(*sources: dict[str, Any]) -> dict[str, str]:
    """Return the special tokens that a template may name; the first source that has one counts."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
    found: dict[str, str] = {}
    for name in names:
        texts = [text for source in sources if (text := _content(source.get(name))) is not None]
        if texts:
            found[name] = texts[0]
    return found


def chat_template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return a model's chat templates by name, as transformers finds them; the ordinary one is called "default".

    A file beside the tokenizer goes before tokenizer_config.json, where a template is a text, or several are a list or
    an object with names.
    """
    written = config.get("chat_template")
    found: dict[str, str] = {}
    if isinstance(written, str):
        found["default"] = written
    elif isinstance(written, dict):
        found |= {str(name): text for name, text in written.items() if isinstance(text, str)}
    elif isinstance(written, list):
        named = [one for one in written if isinstance(one, dict)]
        found |= {str(one.get("name")): one["template"] for one in named if isinstance(one.get("template"), str)}
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (single := folder / "chat_template.jinja").is_file():
        files["default"] = single
    if files:
        found = {name: path.read_text(encoding="utf-8") for name, path in sorted(files.items())}
    return found
