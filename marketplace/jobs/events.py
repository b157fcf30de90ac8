"""Events for the organization's webhooks: a batch, or a prediction in the background, has ended."""

from __future__ import annotations

from marketplace.alerts.events import emit
from marketplace.jobs.models import AsyncPrediction, Batch


def tell_end_of_batch(batch: Batch) -> None:
    """Tell that a batch completed, failed, expired or was cancelled, in the transaction of its end."""
    emit(
        organization=batch.organization,
        kind=f"batch.{batch.state}",
        data={
            "batch_id": batch.public_id,
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
            "cost_nano_usd": batch.cost_nano_usd,
            "output_file_id": batch.output_file.public_id if batch.output_file else None,
            "error_file_id": batch.error_file.public_id if batch.error_file else None,
        },
    )


def tell_end_of_prediction(job: AsyncPrediction) -> None:
    """Tell that a prediction which asked for it has ended, in the transaction of its end."""
    if not job.webhook:
        return
    data = {"id": job.public_id, "prediction_id": str(job.prediction_id) if job.prediction_id else None}
    emit(
        organization=job.organization,
        kind=f"prediction.{job.state}",
        data=data | {"cost_nano_usd": job.cost_nano_usd, "error_code": job.error_code or None},
    )
