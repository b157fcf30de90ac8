"""The Celery app: worker and beat. The schedule is code, so that it is reviewed and deployed like code."""

from __future__ import annotations

import os
import time

from celery import Celery, Task
from celery.signals import (
    beat_init,
    task_postrun,
    task_prerun,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
)

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings")

from marketplace.config.env import Env
from marketplace.operations.task_times import note_task
from protocol.tracing import Span, Spans, spans_of
from sealed_weights.process import keep_memory_private

_valkey = Env.load().valkey_url
# kombu spells a unix socket differently from redis-py.
_broker = _valkey.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")

app = Celery("intarsia", broker=_broker)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,  # a worker killed with -9 gives its task to the next one; every task is idempotent
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    # Minutes long, so by a worker of their own.
    task_routes={
        "marketplace.evals.tasks.run_evaluation": {"queue": "runs"},
        "marketplace.trials.run_trial": {"queue": "runs"},
        "marketplace.planning.make_plan": {"queue": "runs"},
        "marketplace.jobs.work": {"queue": "jobs"},
    },
    task_time_limit=300,
    task_soft_time_limit=270,
    broker_connection_retry_on_startup=True,
    # Publishing from a web request must fail fast when Valkey is away, not hold the request for many seconds.
    broker_transport_options={"visibility_timeout": 600, "max_retries": 1, "interval_start": 0.05},
    beat_schedule={
        # A round that waited this long is one too many: the next has been sent.
        "sweep open holds": {
            "task": "marketplace.gateway.tasks.sweep_open_holds",
            "schedule": 5.0,
            "options": {"expires": 10.0},
        },
        "audit receipts": {"task": "marketplace.gateway.tasks.audit_receipts", "schedule": 60.0},
        "audit all receipts": {"task": "marketplace.gateway.tasks.audit_all_receipts", "schedule": 86_400.0},
        "post new entries": {
            "task": "billing.tasks.post_new_entries",
            "schedule": 5.0,
            "options": {"expires": 10.0},
        },
        # For plans whose message was lost with the broker.
        "make plans": {"task": "marketplace.planning.make_plan", "schedule": 60.0, "options": {"expires": 55.0}},
        # Hourly, for a week's interval would begin anew whenever beat does.
        "ask for the week's plan": {"task": "marketplace.planning.ask_weekly", "schedule": 3600.0},
        "forget answers": {"task": "billing.tasks.forget_answers", "schedule": 60.0, "options": {"expires": 55.0}},
        "expire credit": {"task": "billing.tasks.expire_credit", "schedule": 300.0, "options": {"expires": 290.0}},
        "issue papers": {"task": "billing.tasks.issue_papers", "schedule": 10.0, "options": {"expires": 20.0}},
        "roll up usage": {
            "task": "billing.tasks.roll_up_usage",
            "schedule": 5.0,
            "options": {"expires": 10.0},
        },
        "clear outbox": {"task": "billing.tasks.clear_outbox", "schedule": 3600.0},
        "ask Stripe about open top-ups": {"task": "billing.tasks.catch_up_top_ups", "schedule": 15.0},
        "ask Stripe about unknown cards": {"task": "billing.tasks.learn_cards", "schedule": 600.0},
        "ask Stripe about open refunds": {"task": "billing.tasks.advance_refunds", "schedule": 15.0},
        "take disputed credit": {"task": "billing.tasks.take_disputed_credit", "schedule": 15.0},
        "ask Stripe about open disputes": {"task": "billing.tasks.ask_about_disputes", "schedule": 3600.0},
        "top up low wallets": {"task": "billing.tasks.top_up_low_wallets", "schedule": 30.0},
        "reconcile with Stripe": {"task": "billing.tasks.reconcile_stripe", "schedule": 86_400.0},
        "poll Stripe for missed events": {"task": "billing.tasks.catch_up_stripe_events", "schedule": 15.0},
        "advance payouts": {
            "task": "billing.payouts.tasks.advance_payouts",
            "schedule": 5.0,
            "options": {"expires": 10.0},
        },
        "start scheduled payouts": {"task": "billing.payouts.tasks.start_scheduled_payouts", "schedule": 3600.0},
        "settle creators' balances": {"task": "billing.payouts.tasks.settle_creators", "schedule": 3600.0},
        "check payouts": {"task": "billing.payouts.tasks.check_payouts", "schedule": 3600.0},
        "rank models": {"task": "marketplace.standing.tasks.rank_models", "schedule": 3600.0},
        "rank new models": {
            "task": "marketplace.standing.tasks.rank_new_models",
            "schedule": 60.0,
            "options": {"expires": 55.0},
        },
        "resume stuck verifications": {
            "task": "marketplace.publishing.resume_stuck_verifications",
            "schedule": 30.0,
        },
        "end versions": {
            "task": "marketplace.publishing.end_versions",
            "schedule": 300.0,
            "options": {"expires": 290.0},
        },
        "tell of ends of versions": {"task": "marketplace.publishing.tell_of_ends", "schedule": 3600.0},
        "expire uploads of sets": {"task": "marketplace.evals.tasks.expire_abandoned_uploads", "schedule": 3600.0},
        "clear versions": {
            "task": "marketplace.evals.tasks.clear_versions",
            "schedule": 30.0,
            "options": {"expires": 25.0},
        },
        "resume evaluations": {
            "task": "marketplace.evals.tasks.resume_evaluations",
            "schedule": 10.0,
            "options": {"expires": 20.0},
        },
        "embed new listings": {
            "task": "marketplace.catalog.tasks.embed_new_listings",
            "schedule": 5.0,
            "options": {"expires": 10.0},
        },
        "begin announced prices": {
            "task": "marketplace.catalog.tasks.begin_announced_prices",
            "schedule": 60.0,
            "options": {"expires": 55.0},
        },
        "reconcile spellings": {"task": "marketplace.catalog.tasks.reconcile_spellings", "schedule": 600.0},
        "confirm revocations": {"task": "marketplace.vault.tasks.confirm_revocations", "schedule": 5.0},
        "mark silent replicas": {"task": "marketplace.vault.tasks.mark_silent_replicas", "schedule": 10.0},
        "mark lost names": {
            "task": "marketplace.vault.tasks.mark_lost_names",
            "schedule": 30.0,
            "options": {"expires": 25.0},
        },
        "check custody": {"task": "marketplace.vault.tasks.check_custody", "schedule": 3600.0},
        "create usage partitions": {"task": "billing.tasks.create_usage_partitions", "schedule": 3600.0},
        "drop old usage": {"task": "billing.tasks.drop_usage", "schedule": 86_400.0},
        # The last head of a day follows within the hour after its end.
        "publish roots of receipts": {
            "task": "marketplace.receipts.tasks.publish_days",
            "schedule": 3600.0,
            "options": {"expires": 3000.0},
        },
        "send alerts": {
            "task": "marketplace.alerts.tasks.send_alerts",
            "schedule": 15.0,
            "options": {"expires": 30.0},
        },
        "forget old deliveries": {"task": "marketplace.alerts.tasks.forget_old_deliveries", "schedule": 3600.0},
        "watch models": {
            "task": "marketplace.watch.tasks.watch_models",
            "schedule": 60.0,
            "options": {"expires": 55.0},
        },
        "note measured latency": {
            "task": "marketplace.watch.tasks.note_measured_latency",
            "schedule": 3600.0,
            "options": {"expires": 3000.0},
        },
        "resume trials": {
            "task": "marketplace.trials.tasks.resume_trials",
            "schedule": 15.0,
            "options": {"expires": 30.0},
        },
        "forget kept responses": {"task": "marketplace.responses.tasks.forget_responses", "schedule": 3600.0},
        "forget old runs": {"task": "billing.budgets.runs.tasks.forget_runs", "schedule": 3600.0},
        "delete old rows of trials": {"task": "marketplace.trials.tasks.delete_old_rows", "schedule": 3600.0},
        "resume jobs": {
            "task": "marketplace.jobs.tasks.resume_work",
            "schedule": 5.0,
            "options": {"expires": 10.0},
        },
        "delete old jobs": {"task": "marketplace.jobs.tasks.delete_old_jobs", "schedule": 3600.0},
        # A month is judged a day after its end; the other rounds find nothing to do.
        "keep promises": {
            "task": "marketplace.promises.tasks.keep_promises",
            "schedule": 3600.0,
            "options": {"expires": 3000.0},
        },
        "tell creators of copiers": {
            "task": "marketplace.protection.tasks.tell_creators",
            "schedule": 15.0,
            "options": {"expires": 30.0},
        },
        "trust customers": {"task": "marketplace.protection.tasks.trust_customers", "schedule": 86_400.0},
        # A day is sealed an hour after its end; the other rounds find nothing to do.
        "seal the audit log": {"task": "marketplace.accounts.tasks.seal_audit_log", "schedule": 3600.0},
        "probe components": {
            "task": "marketplace.operations.tasks.probe_components",
            "schedule": 60.0,
            "options": {"expires": 55.0},
        },
        "check ledger": {"task": "billing.tasks.check_ledger", "schedule": 300.0},
        "check ledger in full": {"task": "billing.tasks.check_ledger_in_full", "schedule": 86_400.0},
    },
)
app.autodiscover_tasks(
    [
        "billing",
        "billing.budgets.runs",
        "billing.payouts",
        "marketplace.accounts",
        "marketplace.alerts",
        "marketplace.catalog",
        "marketplace.protection",
        "marketplace.publishing",
        "marketplace.vault",
        "marketplace.receipts",
        "marketplace.evals",
        "marketplace.promises",
        "marketplace.trials",
        "marketplace.responses",
        "marketplace.jobs",
        "marketplace.standing",
        "marketplace.gateway",
        "marketplace.operations",
        "marketplace.planning",
        "marketplace.watch",
    ]
)


@worker_init.connect
@beat_init.connect
def _keep_memory_private(**_: object) -> None:
    """Protect the worker, before it forks, and beat. Not at import: whatever uses Django imports this module."""
    keep_memory_private()


_spans: Spans | None = None
_running: dict[str, Span] = {}  # by the id of the task
_began: dict[str, float] = {}


@worker_process_init.connect
def _begin_tracing(**_: object) -> None:
    """Begin in the child: what exports has a thread, which no fork copies."""
    global _spans
    _spans = spans_of("intarsia-worker")


@worker_process_shutdown.connect
def _end_tracing(**_: object) -> None:
    if _spans is not None:
        _spans.close()


@task_prerun.connect
def _trace_task(task_id: str = "", task: Task | None = None, **_: object) -> None:
    """Note when a task began, and begin its span; its arguments are no part of it."""
    _began[task_id] = time.monotonic()
    if _spans is not None and task is not None:
        _running[task_id] = _spans.begin(f"task {task.name}", kind="consumer")


@task_postrun.connect
def _note_task(task_id: str = "", task: Task | None = None, state: str | None = None, **_: object) -> None:
    """Note how the task ended, for `/metrics` of the web process, and end its span."""
    if (span := _running.pop(task_id, None)) is not None:
        span.end(error="" if state == "SUCCESS" else (state or "UNKNOWN").lower())
    seconds = time.monotonic() - _began.pop(task_id, time.monotonic())
    if task is not None and task.name:
        note_task(_valkey, task.name, state or "UNKNOWN", seconds)
