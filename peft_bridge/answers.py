"""Greedy answers of PEFT: the model's own, without any setting of a base's generation_config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from peft_bridge.errors import BridgeError
from peft_bridge.models import LoadedAdapter
from sealed_weights import Contract

_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True, repr=False)
class PeftAnswer:
    """A prompt and the answer to it, as token ids. `text` is without the token that ends it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str


def contract_messages(contract: Contract | None, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the messages as a replica reads them under the contract (docs/contract.md). Raises `BridgeError`."""
    own = [message["content"] for message in messages if message["role"] in _SYSTEM]
    rest = [dict(message) for message in messages if message["role"] not in _SYSTEM]
    if contract is None or (not contract.instructions and contract.system == "append"):
        return [
            {**message, "role": "system" if message["role"] in _SYSTEM else message["role"]} for message in messages
        ]
    if own and contract.system == "refuse":
        raise BridgeError("rows", "may hold no system message: the contract refuses them")
    if contract.messages == "single" and [message["role"] for message in rest] != ["user"]:
        raise BridgeError("rows", "must each be one user message: the contract reads nothing else")
    texts = [contract.instructions, *(own if contract.system == "append" else [])]
    system = "\n\n".join(text for text in texts if text)
    return [{"role": "system", "content": system}, *rest] if system else rest


def prompt_of(loaded: LoadedAdapter, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    """Return the tokens of a chat, by the base's own template. Raises `BridgeError`."""
    if not loaded.tokenizer.chat_template:
        raise BridgeError("base", "has no chat template, and the prompts of rows are chats")
    try:
        text = loaded.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program, and raises what it likes
        raise BridgeError("base", f"the chat template refuses these messages ({type(error).__name__})") from None
    return tuple(loaded.tokenizer.encode(text, add_special_tokens=False))


@torch.inference_mode()
def answer(loaded: LoadedAdapter, prompt: Sequence[int], max_tokens: int) -> PeftAnswer:
    """Answer greedily with at most `max_tokens` tokens, the one that ends the answer among them.

    A loop instead of `generate`, which takes penalties and more from the base's generation_config.
    """
    ends, tokens = loaded.ends, list[int]()
    given: Any = torch.tensor([list(prompt)], device=loaded.model.device)
    cache: Any = None
    while len(tokens) < max_tokens:
        out = loaded.model(input_ids=given, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        given = out.logits[:, -1:].argmax(-1)
        tokens.append(int(given[0, 0]))
        if tokens[-1] in ends:
            break
    whole = [token for token in tokens if token not in ends]
    return PeftAnswer(tuple(prompt), tuple(tokens), str(loaded.tokenizer.decode(whole, skip_special_tokens=False)))


@dataclass(frozen=True, slots=True)
class BesideBase:
    """same_tokens: the bare base gives every token of the answer too; changed: some logit of it is another."""

    same_tokens: bool
    changed: bool


@torch.inference_mode()
def beside_base(loaded: LoadedAdapter, given: PeftAnswer) -> BesideBase:
    """Read an answer once more with the adapter and once without it, each token after the answer's own before it."""
    read = torch.tensor([list(given.prompt + given.tokens)], device=loaded.model.device)
    span = slice(len(given.prompt) - 1, -1)
    mine = loaded.model(input_ids=read).logits[0, span]
    with loaded.model.disable_adapter():
        base = loaded.model(input_ids=read).logits[0, span]
    return BesideBase(base.argmax(-1).tolist() == list(given.tokens), not torch.equal(mine, base))
