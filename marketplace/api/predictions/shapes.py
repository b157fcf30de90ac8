"""The shapes of responses, runs, files, batches and predictions in the background. JSON Schema of OpenAPI 3.1."""

from __future__ import annotations

from marketplace.api.predictions.answers import INTEGER, TEXT, UUID, Schema, always, list_of, object_of, or_null, ref

_FREE: Schema = {"type": "object", "additionalProperties": True}
_METADATA: Schema = {"type": ["object", "null"], "additionalProperties": TEXT, "maxProperties": 16}
_SECONDS = or_null(INTEGER)


def _list(name: str) -> Schema:
    fields = {"object": always("list"), "data": list_of(ref(name)), "has_more": {"type": "boolean"}}
    return object_of(fields, {"first_id": or_null(TEXT), "last_id": or_null(TEXT)})


SCHEMAS: dict[str, Schema] = {
    "ResponseBody": object_of(
        {"model": TEXT, "input": {"anyOf": [TEXT, list_of(_FREE)]}},
        {
            "instructions": or_null(TEXT),
            "tools": or_null(list_of(_FREE)),
            "tool_choice": {},
            "text": or_null(_FREE),
            "max_output_tokens": or_null(INTEGER),
            "previous_response_id": or_null(TEXT),
            "store": {"type": ["boolean", "null"], "default": False, "description": "keep it, encrypted, for 30 days"},
            "stream": {"type": ["boolean", "null"]},
            "metadata": _METADATA,
        },
    ),
    "Response": object_of(
        {
            "id": TEXT,
            "object": always("response"),
            "created_at": INTEGER,
            "status": {"type": "string", "enum": ["in_progress", "completed", "incomplete", "failed"]},
            "incomplete_details": or_null(_FREE),
            "error": or_null(_FREE),
            "model": TEXT,
            "output": list_of(_FREE),
            "usage": or_null(_FREE),
            "metadata": _METADATA,
            "previous_response_id": or_null(TEXT),
        }
    ),
    "ResponseItems": object_of({"object": always("list"), "data": list_of(_FREE), "has_more": {"type": "boolean"}}),
    "Deleted": object_of({"id": TEXT, "object": TEXT, "deleted": {"type": "boolean"}}),
    "RunTerms": object_of(
        {},
        {
            "max_cost_nano_usd": INTEGER,
            "max_calls": INTEGER,
            "deadline_s": INTEGER,
            "name": TEXT,
            "metadata": _METADATA,
        },
    ),
    "Run": object_of(
        {
            "id": TEXT,
            "object": always("run"),
            "status": TEXT,
            "name": TEXT,
            "metadata": _METADATA,
            "max_cost_nano_usd": INTEGER,
            "spent_nano_usd": INTEGER,
            "held_nano_usd": INTEGER,
            "max_calls": INTEGER,
            "calls": INTEGER,
            "trace_id": TEXT,
            "created_at": INTEGER,
            "deadline_at": INTEGER,
            "closed_at": or_null(INTEGER),
        }
    ),
    "Runs": _list("Run"),
    "JsonLines": {"type": "string", "description": "one JSON object per line"},
    "Upload": object_of({"file": {"type": "string", "contentMediaType": "application/jsonl"}, "purpose": TEXT}),
    "File": object_of(
        {
            "id": TEXT,
            "object": always("file"),
            "bytes": INTEGER,
            "created_at": INTEGER,
            "expires_at": _SECONDS,
            "filename": TEXT,
            "purpose": TEXT,
            "status": TEXT,
            "lines": or_null(INTEGER),
        }
    ),
    "Files": _list("File"),
    "BatchBody": object_of(
        {"input_file_id": TEXT, "endpoint": TEXT},
        {"completion_window": always("24h"), "metadata": _METADATA},
    ),
    "BatchToQuote": object_of({"input_file_id": TEXT}),
    "BatchQuote": object_of(
        {
            "object": always("batch.quote"),
            "lines": INTEGER,
            "models": list_of(TEXT),
            "lines_without_model": INTEGER,
            "worst_case_nano_usd": INTEGER,
            "typical_nano_usd": or_null(INTEGER),
            "largest_line_nano_usd": INTEGER,
            "latency_class": TEXT,
        }
    ),
    "Batch": object_of(
        {
            "id": TEXT,
            "object": always("batch"),
            "endpoint": TEXT,
            "status": TEXT,
            "errors": or_null(_FREE),
            "input_file_id": TEXT,
            "output_file_id": or_null(TEXT),
            "error_file_id": or_null(TEXT),
            "created_at": INTEGER,
            "expires_at": _SECONDS,
            "request_counts": object_of({"total": INTEGER, "completed": INTEGER, "failed": INTEGER}),
            "cost_nano_usd": INTEGER,
            "metadata": _METADATA,
        }
    ),
    "Batches": _list("Batch"),
    "BackgroundBody": object_of(
        {"endpoint": TEXT, "body": _FREE}, {"webhook": {"type": "boolean", "description": "tell the webhooks its end"}}
    ),
    "BackgroundPrediction": object_of(
        {
            "id": TEXT,
            "object": always("prediction"),
            "status": {"type": "string", "enum": ["queued", "running", "succeeded", "failed", "cancelled"]},
            "endpoint": TEXT,
            "url": TEXT,
            "created_at": INTEGER,
            "response": or_null(_FREE),
            "error": or_null(_FREE),
            "prediction_id": or_null(UUID),
            "receipt_url": or_null(TEXT),
            "cost_nano_usd": or_null(INTEGER),
        }
    ),
    "BackgroundPredictions": _list("BackgroundPrediction"),
}
