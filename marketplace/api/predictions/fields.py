"""The meaning of each field of a request body below `/v1`, in one line. Longer: docs/api.md."""

from __future__ import annotations

from typing import Any

# Fields that are read only to be refused or ignored.
LEFT_OUT = frozenset({"audio", "modalities"})
MEANINGS = {
    "model": "`org/slug`, or `org/slug@3` for its third version",
    "messages": "the chat so far",
    "prompt": "text, token ids, or a list of either: 128 completions at most, over all prompts",
    "input": "text, token ids, or a list of up to 2,048",
    "stream": "answer with server-sent events",
    "stream_options": "`include_usage`: the last event carries usage and cost",
    "include_usage": "the last event carries usage and cost",
    "max_tokens": "the most tokens of one completion; left out, that of the model’s contract, or 512",
    "max_completion_tokens": "the newer name of `max_tokens`",
    "temperature": "0 to 2; 0 always takes the likeliest token",
    "top_p": "0 to 1: only the likeliest tokens of this probability together",
    "top_k": "only so many of the likeliest tokens; 0 or -1 is off",
    "min_p": "only tokens of at least this share of the likeliest token’s probability",
    "n": "how many completions, up to 128; the prompt counts once",
    "best_of": "how many completions, or beams, are computed and paid for, up to 128; the best `n` are returned",
    "use_beam_search": "true: search for the likeliest answers with `best_of` beams, 2 to 8",
    "length_penalty": "of a beam search: log-probabilities are divided by the length to this power",
    "early_stopping": "of a beam search: `true`, `false` or `never`",
    "seed": "the same seed, request and version give the same answer",
    "stop": "up to 16 texts that end the answer",
    "ignore_eos": "go on after the end-of-sequence token",
    "return_token_ids": "token ids beside the text",
    "speculation": "false: no tokens are guessed ahead, now or later from this answer; it is the same, and slower",
    "confidence": "true: each choice has the probability of its whole answer, 0 to 1",
    "presence_penalty": "-2 to 2",
    "frequency_penalty": "-2 to 2",
    "repetition_penalty": "above 0, at most 10; 1 is off",
    "logit_bias": "token id → -100 to 100, 1,024 at most",
    "response_format": "`text`, `json_object` or `json_schema` (always strict)",
    "guided_regex": "the whole answer follows this regular expression (Rust’s syntax)",
    "guided_grammar": "the whole answer follows this Lark grammar",
    "logprobs": "log-probabilities, where the model’s creator opened them",
    "top_logprobs": "up to 20 alternatives for each token",
    "echo": "begin the answer with the prompt",
    "tools": "functions that the model may call",
    "tool_choice": "`none`, `auto`, `required`, or one function",
    "parallel_tool_calls": "false: the answer ends after its first call",
    "service_tier": "`priority`, `default` (or `auto`), `flex`: the latency classes interactive, standard, batch",
    "encoding_format": "`float` or `base64`",
    "role": "`system`, `developer`, `user`, `assistant` or `tool`",
    "content": "text, or parts of type `text`",
    "tool_calls": "calls that an assistant’s message made",
    "tool_call_id": "the call that a tool’s message answers",
    "user": "whom you ask for, 1 to 64 printable characters: its spending is counted and limited by that name",
    "safety_identifier": "the newer name of `user`",
    "strict": "arguments validate against `parameters`",
    "parameters": "the JSON Schema of the arguments",
    "arguments": "JSON, as text",
}


def explained(schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of bodies with a description of each field, without those that are refused or ignored."""
    return {name: _explained(schema) for name, schema in schemas.items()}


def _explained(schema: dict[str, Any]) -> dict[str, Any]:
    fields = {
        name: {**field, "description": MEANINGS[name]} if name in MEANINGS else field
        for name, field in schema.get("properties", {}).items()
        if name not in LEFT_OUT
    }
    return {**schema, "properties": fields}
