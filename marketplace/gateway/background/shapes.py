"""Files, batches and predictions as `/v1` shows them: OpenAI's objects, with what things cost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from marketplace.gateway.errors import bad_request
from marketplace.jobs.models import AsyncPrediction, Batch, Call, File
from marketplace.jobs.quotes import Quote
from marketplace.jobs.selectors import Page

_STATUS = {Call.State.WAITING: "queued", Call.State.RUNNING: "running", Call.State.COMPLETED: "succeeded"}


def id_of(text: object, prefix: str, field: str | None = None) -> UUID:
    """Return the id in `file-…`, `batch_…` or `pred_…`. Raises Refusal 400."""
    if isinstance(text, str) and text.startswith(prefix) and len(text) == len(prefix) + 32:
        try:
            return UUID(hex=text[len(prefix) :])
        except ValueError:
            pass
    raise bad_request(f"an id is {prefix} and 32 hex digits", field)


def file_shape(file: File) -> dict[str, Any]:
    """Return OpenAI's file object."""
    return {
        "id": file.public_id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": _seconds(file.created_at),
        "expires_at": _seconds(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "lines": file.lines,
    }


def batch_shape(batch: Batch) -> dict[str, Any]:
    """Return OpenAI's batch object, with its cost and estimate."""
    ended = {state: batch.ended_at if batch.state == state else None for state in Batch.State}
    errors = None
    if batch.reason_code:
        errors = {"object": "list", "data": [{"code": batch.reason_code, "message": batch.reason, "line": None}]}
    return {
        "id": batch.public_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": errors,
        "input_file_id": _file_id(batch.input_file_id) or "",
        "completion_window": "24h",
        "status": batch.state,
        "output_file_id": _file_id(batch.output_file_id),
        "error_file_id": _file_id(batch.error_file_id),
        "created_at": _seconds(batch.created_at),
        "in_progress_at": _seconds(batch.in_progress_at),
        "expires_at": _seconds(batch.expires_at),
        "finalizing_at": _seconds(batch.finalizing_at),
        "completed_at": _seconds(ended[Batch.State.COMPLETED]),
        "failed_at": _seconds(ended[Batch.State.FAILED]),
        "expired_at": _seconds(ended[Batch.State.EXPIRED]),
        "cancelling_at": _seconds(batch.cancelling_at),
        "cancelled_at": _seconds(ended[Batch.State.CANCELLED]),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata or None,
        "cost_nano_usd": batch.cost_nano_usd,
        "estimate": {"typical_nano_usd": batch.typical_nano_usd, "worst_case_nano_usd": batch.worst_nano_usd},
    }


def quote_shape(quote: Quote) -> dict[str, Any]:
    """Return the cost of a file before its batch begins."""
    return {
        "object": "batch.quote",
        "lines": quote.lines,
        "models": list(quote.models),
        "lines_without_model": quote.unknown,
        "worst_case_nano_usd": quote.worst_nano_usd,
        "typical_nano_usd": quote.typical_nano_usd,
        "largest_line_nano_usd": quote.largest_nano_usd,
        "latency_class": "batch",
    }


def prediction_shape(job: AsyncPrediction, answer: Any = None) -> dict[str, Any]:
    """Return a prediction in the background; `answer` is the body of its answer or refusal."""
    paid = None if job.prediction_id is None else str(job.prediction_id)
    return {
        "id": job.public_id,
        "object": "prediction",
        "status": _STATUS.get(Call.State(job.state), job.state),
        "endpoint": job.endpoint,
        "url": f"/v1/predictions/{job.public_id}",
        "created_at": _seconds(job.created_at),
        "started_at": _seconds(job.started_at),
        "ended_at": _seconds(job.ended_at),
        "expires_at": _seconds(job.expires_at),
        "response": None if answer is None else {"status_code": job.status_code, "body": answer},
        "error": {"code": job.error_code} if job.error_code else None,
        "prediction_id": paid,
        "receipt_url": None if paid is None else f"/api/v1/receipts/{paid}",
        "cost_nano_usd": job.cost_nano_usd,
    }


def list_shape(page: Page[Any], shape: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return OpenAI's list of a page."""
    data = [shape(row) for row in page.rows]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": page.has_more}


def _file_id(file_id: UUID | None) -> str | None:
    return None if file_id is None else f"file-{file_id.hex}"


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
