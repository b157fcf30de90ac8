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


def object_of(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def always(text: str) -> Schema:
    return {"type": "string", "const": text}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


COST: Schema = {
    "type": ["integer", "null"],
    "description": "nano-dollars charged; null where the outcome is not settled yet",
}
_USAGE = object_of(
    {"prompt_tokens": INTEGER, "total_tokens": INTEGER},
    {
        "completion_tokens": INTEGER,
        "prompt_tokens_details": object_of({"cached_tokens": INTEGER}),
        "completion_tokens_details": object_of(
            {"accepted_prediction_tokens": INTEGER, "rejected_prediction_tokens": INTEGER},
            {"returned_tokens": INTEGER},
        ),
        "cost_nano_usd": COST,
    },
)
_EXTRA = object_of(
    {"prediction_id": UUID, "receipt_id": UUID, "settled": BOOLEAN},
    {"cut_off": {"type": "boolean", "description": "the answer ended before its form was whole, and was free"}},
)
_HEAD = {"id": TEXT, "created": INTEGER, "model": TEXT}
_LOGPROBS = or_null({"type": "object"})
_CALL = object_of(
    {"id": TEXT, "type": always("function"), "function": object_of({"name": TEXT, "arguments": TEXT})},
)
_MESSAGE = object_of(
    {"role": always("assistant"), "content": or_null(TEXT)},
    {"refusal": or_null(TEXT), "tool_calls": list_of(_CALL)},
)
_FINISH: Schema = {"type": "string", "enum": ["stop", "length", "tool_calls", "content_filter", "budget"]}
_ON_REQUEST = {"logprobs": _LOGPROBS, "confidence": {"type": "number", "minimum": 0, "maximum": 1}}
_CHOICE = {"index": INTEGER, "finish_reason": _FINISH}
_PRICE = object_of(
    {
        "input_micro_usd_per_mtok": INTEGER,
        "cached_input_micro_usd_per_mtok": INTEGER,
        "output_micro_usd_per_mtok": INTEGER,
        "per_prediction_nano_usd": INTEGER,
        "class_bps": INTEGER,
    }
)
_TYPICAL = object_of(
    {"prompt_tokens": INTEGER, "cached_tokens": INTEGER, "completion_tokens": INTEGER, "measured_predictions": INTEGER}
)
_REFUSAL = object_of(
    {
        "code": {"type": "string", "description": "stable: programs decide by it"},
        "message": {"type": "string", "description": "for people"},
        "type": {"type": "string", "description": "OpenAI’s word for the kind of refusal"},
        "param": {"type": ["string", "null"], "description": "the field, parameter or header at fault"},
        "request_id": TEXT,
    }
)

ANSWERS: dict[str, Schema] = {
    # The one form of every refusal, of both APIs (`accounts.envelope`).
    "Refusal": object_of({"error": _REFUSAL}),
    "ChatCompletion": object_of(
        {
            **_HEAD,
            "object": always("chat.completion"),
            "choices": list_of(
                object_of(
                    {**_CHOICE, "message": _MESSAGE},
                    _ON_REQUEST,
                )
            ),
            "usage": _USAGE,
            "intarsia": _EXTRA,
        },
        {"service_tier": TEXT},
    ),
    "Completion": object_of(
        {
            **_HEAD,
            "object": always("text_completion"),
            "choices": list_of(
                object_of(
                    {**_CHOICE, "text": TEXT},
                    _ON_REQUEST,
                )
            ),
            "usage": _USAGE,
            "intarsia": _EXTRA,
        },
        {"service_tier": TEXT},
    ),
    "Embeddings": object_of(
        {
            "object": always("list"),
            "model": TEXT,
            "data": list_of(
                object_of(
                    {
                        "object": always("embedding"),
                        "index": INTEGER,
                        "embedding": {"anyOf": [list_of(NUMBER), {"type": "string", "contentEncoding": "base64"}]},
                    }
                )
            ),
            "usage": _USAGE,
            "intarsia": _EXTRA,
        }
    ),
    "ModerationBody": object_of(
        {"input": {"anyOf": [TEXT, {"type": "array", "minItems": 1}]}},
        {"model": or_null(TEXT)},
    ),
    "Moderation": object_of(
        {
            "id": TEXT,
            "model": TEXT,
            "results": list_of(
                object_of(
                    {
                        "flagged": BOOLEAN,
                        "categories": object_of({"prompt_injection": BOOLEAN}),
                        "category_scores": object_of({"prompt_injection": NUMBER}),
                    }
                )
            ),
            "intarsia": object_of({"prediction_ids": list_of(UUID), "cost_nano_usd": COST}),
        }
    ),
    "QuotedBody": {"anyOf": [ref("ChatBody"), ref("CompletionBody"), ref("EmbeddingBody")]},
    "PredictionQuote": object_of(
        {
            "object": always("quote"),
            "model": TEXT,
            "version": INTEGER,
            "latency_class": {"type": "string", "enum": ["interactive", "standard", "batch"]},
            "worst_case_nano_usd": INTEGER,
            "typical_nano_usd": or_null(INTEGER),
            "typical": or_null(_TYPICAL),
            "minimum_nano_usd": INTEGER,
            "free_nano_usd": INTEGER,
            "price": _PRICE,
        }
    ),
    "Feedback": object_of({"prediction_id": UUID, "thumb": {"type": "string", "enum": ["up", "down"]}}),
    "CallableModel": object_of({"id": TEXT, "object": always("model"), "created": INTEGER, "owned_by": TEXT}),
    "CallableModels": object_of({"object": always("list"), "data": list_of(ref("CallableModel"))}),
}
