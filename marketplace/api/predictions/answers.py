"""The shapes of answers below `/v1`, and of the bodies that the gateway reads by itself. JSON Schema of OpenAPI 3.1.

A test holds answers of the gateway against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
TEXT: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
UUID: Schema = {"type": "string", "format": "uuid"}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _always(text: str) -> Schema:
    return {"type": "string", "const": text}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


COST: Schema = {
    "type": ["integer", "null"],
    "description": "nano-dollars charged; null where the outcome is not settled yet",
}
_USAGE = _object(
    {"prompt_tokens": INTEGER, "total_tokens": INTEGER},
    {
        "completion_tokens": INTEGER,
        "prompt_tokens_details": _object({"cached_tokens": INTEGER}),
        "cost_nano_usd": COST,
    },
)
_EXTRA = _object(
    {"prediction_id": UUID, "receipt_id": UUID, "settled": BOOLEAN},
    {"cut_off": {"type": "boolean", "description": "the answer ended before its form was whole, and was free"}},
)
_HEAD = {"id": TEXT, "created": INTEGER, "model": TEXT}
_LOGPROBS = _or_null({"type": "object"})
_CALL = _object(
    {"id": TEXT, "type": _always("function"), "function": _object({"name": TEXT, "arguments": TEXT})},
)
_MESSAGE = _object(
    {"role": _always("assistant"), "content": _or_null(TEXT)},
    {"refusal": _or_null(TEXT), "tool_calls": _list(_CALL)},
)
_FINISH: Schema = {"type": "string", "enum": ["stop", "length", "tool_calls", "content_filter", "budget"]}
_CHOICE = {"index": INTEGER, "finish_reason": _FINISH}
_PRICE = _object(
    {
        "input_micro_usd_per_mtok": INTEGER,
        "cached_input_micro_usd_per_mtok": INTEGER,
        "output_micro_usd_per_mtok": INTEGER,
        "per_prediction_nano_usd": INTEGER,
        "class_bps": INTEGER,
    }
)
_TYPICAL = _object(
    {"prompt_tokens": INTEGER, "cached_tokens": INTEGER, "completion_tokens": INTEGER, "measured_predictions": INTEGER}
)

ANSWERS: dict[str, Schema] = {
    "OpenAIRefusal": _object(
        {"error": _object({"message": TEXT, "type": TEXT, "param": _or_null(TEXT), "code": TEXT})}
    ),
    "ChatCompletion": _object(
        {
            **_HEAD,
            "object": _always("chat.completion"),
            "choices": _list(_object({**_CHOICE, "message": _MESSAGE}, {"logprobs": _LOGPROBS})),
            "usage": _USAGE,
            "intarsia": _EXTRA,
        },
        {"service_tier": TEXT},
    ),
    "Completion": _object(
        {
            **_HEAD,
            "object": _always("text_completion"),
            "choices": _list(_object({**_CHOICE, "text": TEXT}, {"logprobs": _LOGPROBS})),
            "usage": _USAGE,
            "intarsia": _EXTRA,
        },
        {"service_tier": TEXT},
    ),
    "Embeddings": _object(
        {
            "object": _always("list"),
            "model": TEXT,
            "data": _list(
                _object(
                    {
                        "object": _always("embedding"),
                        "index": INTEGER,
                        "embedding": {"anyOf": [_list(NUMBER), {"type": "string", "contentEncoding": "base64"}]},
                    }
                )
            ),
            "usage": _USAGE,
            "intarsia": _EXTRA,
        }
    ),
    "ModerationBody": _object(
        {"input": {"anyOf": [TEXT, {"type": "array", "minItems": 1}]}},
        {"model": _or_null(TEXT)},
    ),
    "Moderation": _object(
        {
            "id": TEXT,
            "model": TEXT,
            "results": _list(
                _object(
                    {
                        "flagged": BOOLEAN,
                        "categories": _object({"prompt_injection": BOOLEAN}),
                        "category_scores": _object({"prompt_injection": NUMBER}),
                    }
                )
            ),
            "intarsia": _object({"prediction_ids": _list(UUID), "cost_nano_usd": COST}),
        }
    ),
    "QuotedBody": {"anyOf": [_ref("ChatBody"), _ref("CompletionBody"), _ref("EmbeddingBody")]},
    "Quote": _object(
        {
            "object": _always("quote"),
            "model": TEXT,
            "version": INTEGER,
            "latency_class": {"type": "string", "enum": ["interactive", "standard", "batch"]},
            "worst_case_nano_usd": INTEGER,
            "typical_nano_usd": _or_null(INTEGER),
            "typical": _or_null(_TYPICAL),
            "minimum_nano_usd": INTEGER,
            "free_nano_usd": INTEGER,
            "price": _PRICE,
        }
    ),
    "Feedback": _object({"prediction_id": UUID, "thumb": {"type": "string", "enum": ["up", "down"]}}),
    "CallableModel": _object({"id": TEXT, "object": _always("model"), "created": INTEGER, "owned_by": TEXT}),
    "CallableModels": _object({"object": _always("list"), "data": _list(_ref("CallableModel"))}),
}
