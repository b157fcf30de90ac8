"""Bodies that the OpenAI routes must refuse with a 400: the path, the body, and what the message names."""

from __future__ import annotations

BAD: list[tuple[str, bytes, str]] = [
    ("/v1/completions", b"{not json", "parse"),
    ("/v1/completions", b"[]", "object"),
    ("/v1/completions", b'{"model": "base"}', "prompt"),
    ("/v1/completions", b'{"model": "base", "prompt": ["a", 5]}', "prompt"),
    ("/v1/completions", b'{"model": "base", "prompt": ["a", []]}', "prompt"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "n": 2, "best_of": 1}', "best_of"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "best_of": 129}', "best_of"),
    ("/v1/completions", b'{"model": "base", "prompt": ["a", "b"], "best_of": 65}', "best_of"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "best_of": 2, "stream": true}', "stream"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "length_penalty": 2}', "length_penalty"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "early_stopping": true}', "early_stopping"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "use_beam_search": true}', "'n'"),
    *(
        ("/v1/completions", b'{"model": "base", "prompt": "a", "use_beam_search": true, "n": 2, ' + rest, param)
        for rest, param in (
            (b'"best_of": 9}', "best_of"),
            (b'"stream": true}', "stream"),
            (b'"temperature": 0.5}', "temperature"),
            (b'"top_k": 3}', "top_k"),
            (b'"presence_penalty": 1}', "presence_penalty"),
            (b'"logit_bias": {"5": 1}}', "logit_bias"),
            (b'"stop": "x"}', "stop"),
            (b'"length_penalty": 11}', "length_penalty"),
            (b'"early_stopping": "soon"}', "early_stopping"),
            (b'"echo": true, "max_tokens": 0}', "max_tokens"),
        )
    ),
    ("/v1/completions", b'{"model": "base", "prompt": ["a", "b"], "n": 65}', "'n'"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "suffix": "b"}', "suffix"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "presence_penalty": 3}', "presence_penalty"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "repetition_penalty": 0}', "repetition_penalty"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "min_p": 2}', "min_p"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "top_k": -2}', "top_k"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "logit_bias": {"259": 1}}', "logit_bias"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "logit_bias": {"a": 1}}', "logit_bias"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "logit_bias": {"1": 101}}', "logit_bias"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "logprobs": 21}', "logprobs"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "service_tier": "gold"}', "service_tier"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "guided_regex": "("}', "guided_regex"),
    (
        "/v1/completions",
        b'{"model": "base", "prompt": "a", "guided_regex": "a", "guided_grammar": "b"}',
        "guided_grammar",
    ),
    ("/v1/completions", b'{"model": "base", "prompt": "\\ud800"}', "parse"),
    ("/v1/embeddings", b'{"model": "base", "input": []}', "input"),
    ("/v1/embeddings", b'{"model": "base", "input": "a", "dimensions": 8}', "dimensions"),
    ("/v1/embeddings", b'{"model": "base", "input": "a", "encoding_format": "int8"}', "encoding_format"),
    ("/v1/completions", b'{"model": "base", "prompt": [99999]}', "token ids"),
    ("/v1/completions", b'{"model": "base", "prompt": [true]}', "prompt"),
    ("/v1/completions", b'{"model": "base", "prompt": ""}', "empty"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "max_tokens": 0}', "max_tokens"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "temperature": -1}', "temperature"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "top_p": -0.1}', "top_p"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "stop": [""]}', "stop"),
    ("/v1/completions", b'{"model": "base", "prompt": "a", "stream_options": {}}', "stream_options"),
    ("/v1/chat/completions", b'{"model": "base", "messages": []}', "messages"),
    ("/v1/chat/completions", b'{"model": "base", "messages": [{"content": "a"}]}', "role"),
    (
        "/v1/chat/completions",
        b'{"model": "base", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        "content",
    ),
]
# The text after the messages of a chat, and the field that the refusal names.
BAD_CHAT: list[tuple[bytes, str]] = [
    (b'"tools": [{}]}', "tools"),
    (b'"tools": [{"type": "function", "function": {"name": "a b"}}]}', "name"),
    (b'"tools": [{"type": "code", "function": {"name": "a"}}]}', "type"),
    (b'"tool_choice": "required"}', "tool_choice"),
    (b'"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "some"}', "tool_choice"),
    (
        b'"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": '
        b'{"type": "function", "function": {"name": "b"}}}',
        "tool_choice",
    ),
    (b'"response_format": {"type": "yaml"}}', "response_format"),
    (b'"response_format": {"type": "json_schema"}}', "response_format"),
    (b'"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}}', "response_format"),
    (
        b'"response_format": {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": true, '
        b'"type": "array"}}}}',
        "uniqueItems",
    ),
    (b'"response_format": {"type": "json_object"}, "ignore_eos": true}', "ignore_eos"),
    (b'"top_logprobs": 3}', "top_logprobs"),
    (b'"functions": [{"name": "a"}]}', "functions"),
    (b'"modalities": ["audio"]}', "modalities"),
]
BAD += [
    ("/v1/chat/completions", b'{"model": "base", "messages": [{"role": "user", "content": "a"}], ' + rest, says)
    for rest, says in BAD_CHAT
]
