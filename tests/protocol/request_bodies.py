"""Request bodies for both readers, right and wrong: drawn with a seed, the same for gateway and replica."""

from __future__ import annotations

import json
import random
from typing import Any

from protocol.request_fields import FIELDS, Body

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
KINDS: dict[str, Body] = {CHAT: "chat", TEXT: "completions", EMBED: "embeddings"}
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    9,
    0.5,
    1.5,
    10**6,
    10**30,
    "",
    "x",
    "auto",
    "none",
    "x" * 300,
    [],
    ["a"],
    {},
]
ODD += [[1, 2], [[1], "a"], [[]], {"a": 1}, {"type": "x"}, {"5": 1}, {"5": 1000}, "\u0000", "é", 1e308]
# fmt: off
NAMES = (
    "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",
    "n", "best_of", "use_beam_search", "length_penalty", "early_stopping", "seed", "stop", "ignore_eos",
    "return_token_ids", "speculation", "confidence", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "response_format", "guided_regex", "guided_grammar", "logprobs",
    "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "modalities", "echo", "service_tier", "user",
    "safety_identifier", "encoding_format",
)
BESIDE = (
    "metadata", "store", "client_metadata", "prediction", "verbosity", "audio", "functions", "function_call",
    "web_search_options", "suffix", "dimensions", "provider", "region", "temprature", "messages", "unheard_of",
)
# fmt: on
RIGHT: dict[str, list[Any]] = {
    "stream_options": [{}, {"include_usage": True}, {"include_usage": 1}],
    "stop": ["a", ["a", "b"], ["a"] * 17, [""]],
    "logit_bias": [{"5": 1, "7": -100}, {"05": 1}, {"5": 101}, {"٥": 1}, {str(10**9): 1}],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        {"type": "json_schema", "json_schema": {"schema": False}},
        {"type": "json_schema", "json_schema": []},
        {"type": "json_schema"},
        {"type": ["text"]},
        {"type": None},
    ],
    "tools": [
        [{"type": "function", "function": {"name": "f"}}],
        [{"type": "function", "function": {"name": "f", "strict": True}}] * 2,
        [{"type": "other", "function": {"name": "f"}}],
        [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function"}],
    ],
    "tool_choice": [
        "required",
        {"type": "function", "function": {"name": "f"}},
        {"type": "x", "function": {"name": "f"}},
    ],
    "service_tier": ["flex", "priority", "default", "scale"],
    "encoding_format": ["float", "base64", "hex"],
    "early_stopping": ["never", "always"],
    "modalities": [["text"], ["audio"]],
    "guided_regex": ["a+", "("],
    "guided_grammar": ['start: "a"', "start"],
    "temperature": [0, 0.5, 2, 2.1],
    "top_k": [-1, 0, 40, -2],
    "user": ["u", "x" * 64, "x" * 65],
    "safety_identifier": ["u", "a b", "a\n"],
}
for switch in ("stream", "ignore_eos", "return_token_ids", "speculation", "confidence", "echo", "parallel_tool_calls"):
    RIGHT[switch] = [True, False, None, 1]
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "wizard", "")
RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b'{"model":"a/b","prompt":"\\ud800"}',
    b'{"model":"a/b","prompt":1e999}',
    b"[" * 600,
]
RAW += [
    b'{"model":"a/b","prompt":"x","seed":' + b"9" * 4_400 + b"}",
    b'{"model":"a/b","prompt":"x","metadata":' + b"[" * 120,
]
RAW += [
    b'{"model":"a/b","prompt":"x","metadata":' + b"[" * 120 + b"]" * 120 + b"}",
    b'\xef\xbb\xbf{"model":"a/b","prompt":"x"}',
]


def bodies(seed: int, count: int, model: str) -> list[tuple[str, bytes]]:
    """Return paths and bodies; each is a good body of its path with up to four fields drawn anew."""
    rng = random.Random(seed)
    drawn = [(rng.choice((CHAT, TEXT, EMBED)), raw) for raw in RAW]
    while len(drawn) < count:
        path = rng.choice((CHAT, CHAT, TEXT, EMBED))
        body: dict[str, Any] = {"model": model} | _prompt(rng, path)
        known = [name for name in NAMES if name in FIELDS[KINDS[path]]] if rng.random() < 0.8 else NAMES
        for name in rng.sample(known, min(len(known), rng.randrange(5))):
            body[name] = rng.choice(RIGHT[name]) if name in RIGHT and rng.random() < 0.8 else rng.choice(ODD)
        if rng.random() < 0.1:
            body.setdefault(rng.choice(BESIDE), rng.choice(ODD))
        if rng.random() < 0.03:
            del body[rng.choice(list(body))]
        drawn.append((path, json.dumps(body).encode()))
    return drawn


def _prompt(rng: random.Random, path: str) -> dict[str, Any]:
    odd = rng.random() < 0.15
    if path != CHAT:
        prompts = ["x", ["a", "b"], [1, 2, 3], [[1], [2]], ["a", [1]]]
        return {"prompt" if path == TEXT else "input": rng.choice(ODD if odd else prompts)}
    if odd and rng.random() < 0.5:
        return {"messages": rng.choice(ODD)}
    message: dict[str, Any] = {"role": rng.choice(ROLES if odd else ROLES[:4]), "content": "x"}
    if rng.random() < 0.3:
        message["content"] = rng.choice(
            [
                None,
                [],
                [{"type": "text", "text": "a"}],
                [{"type": "refusal", "refusal": "a"}],
                [{"type": "image_url"}],
                5,
                ["a"],
            ]
        )
    if rng.random() < 0.2:
        arguments = rng.choice(['{"a":1}', "{", None, 5, "[" * 200])
        message["tool_calls"] = rng.choice(
            [[], [{"function": {"name": "f", "arguments": arguments}}], [{"id": "c"}], "x"]
        )
    if rng.random() < 0.1:
        message["role"] = rng.choice(["assistant", "user"])
        message["function_call"] = rng.choice([{"name": "f", "arguments": '{"a":1}'}, {"name": "f"}, {}, "f", None])
    if rng.random() < 0.1:
        message[rng.choice(["name", "tool_call_id", "refusal", "audio"])] = rng.choice(ODD)
    return {"messages": [message] * rng.randrange(1, 3)}
