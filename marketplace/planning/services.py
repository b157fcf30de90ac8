"""Staff give files and ask for plans; a worker makes one at a time."""

from __future__ import annotations

import hashlib
import json
import tempfile
from datetime import timedelta
from pathlib import Path

from celery import current_app
from django.db import IntegrityError, transaction
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.accounts.models import User
from marketplace.operations.acts import record_act
from marketplace.planning.errors import NotMade
from marketplace.planning.models import Plan, PlanFile
from marketplace.planning.process import SECONDS, run_capacity, write_files
from marketplace.planning.usage import usage_file

MAX_BYTES = 4 << 20
_ABANDONED = timedelta(seconds=2 * SECONDS)  # a worker that was killed leaves its plan behind
_NEEDED = (PlanFile.Kind.PROFILE, PlanFile.Kind.PRICES, PlanFile.Kind.PROMISES)
PLAN_TASK = "marketplace.planning.make_plan"


@transaction.atomic
def add_file(*, kind: str, subject: str, content: bytes, by: User) -> PlanFile:
    """Keep a file for the plans from now on. Raises InvalidInput; the figures are judged when a plan is made."""
    if kind not in PlanFile.Kind.values:
        raise InvalidInput(f"must be one of {', '.join(PlanFile.Kind.values)}", field="kind")
    if (kind == PlanFile.Kind.PROFILE) != bool(subject):
        raise InvalidInput("name the accelerator of a profile, and of nothing else", field="subject")
    if not 1 <= len(content) <= MAX_BYTES:
        raise InvalidInput(f"must have 1 to {MAX_BYTES:,} bytes", field="file")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidInput("is no text in UTF-8", field="file") from None
    if "\0" in text:
        raise InvalidInput("has a zero byte", field="file")
    digest = hashlib.sha256(content).hexdigest()
    made = PlanFile.objects.create(kind=kind, subject=subject, content=text, sha256=digest, by=by.pk)
    record_act(by=by, act="plan_file.added", subject=subject or kind, data={"kind": kind, "sha256": digest})
    return made


def newest_files() -> list[PlanFile]:
    """Return the files that the next plan is made from."""
    return list(PlanFile.objects.order_by("kind", "subject", "-id").distinct("kind", "subject"))


def missing_files() -> list[str]:
    """Return the kinds of file without which no plan can be made, in words."""
    there = {one.kind for one in newest_files()}
    return [kind.label for kind in _NEEDED if kind not in there]


@transaction.atomic
def ask_for_plan(*, by: User | None) -> Plan:
    """Ask for a plan of today. Raises Conflict while another waits, or a file is missing."""
    missing = missing_files()
    if missing:
        raise Conflict(f"A plan needs these files first: {'; '.join(missing)}.", code="files_missing")
    try:
        with transaction.atomic():
            plan = Plan.objects.create(by=by.pk if by else None)
    except IntegrityError:
        raise Conflict("A plan is waiting already.", code="plan_waits") from None
    if by is not None:
        record_act(by=by, act="plan.asked", subject=str(plan.pk))
    transaction.on_commit(lambda: current_app.send_task(PLAN_TASK, queue="runs", expires=SECONDS), robust=True)
    return plan


def claim_plan() -> Plan | None:
    """Begin the plan that waits; None where none waits or another is being made."""
    late = timezone.now() - _ABANDONED
    Plan.objects.filter(state=Plan.State.RUNNING, started_at__lt=late).update(
        state=Plan.State.FAILED, error="its worker was lost", finished_at=timezone.now()
    )
    try:
        with transaction.atomic():
            claimed = Plan.objects.filter(state=Plan.State.WAITING).update(
                state=Plan.State.RUNNING, started_at=timezone.now()
            )
    except IntegrityError:
        return None
    return Plan.objects.get(state=Plan.State.RUNNING) if claimed else None


def make(plan: Plan) -> None:
    """Make a claimed plan, and the review of the one before. Whatever happens, it ends as made or not made."""
    files = newest_files()
    plan.files = {f"{one.kind} {one.subject}".strip(): one.sha256 for one in files}
    try:
        with tempfile.TemporaryDirectory(prefix="plan-") as name:
            folder = Path(name)
            arguments = _write(folder, files)
            plan.result = run_capacity(folder, "plan", *arguments)
            plan.review = _review(folder, plan)
        plan.state, plan.error = Plan.State.DONE, ""
    except NotMade as error:
        plan.state, plan.error = Plan.State.FAILED, str(error)[:2000]
    plan.finished_at = timezone.now()
    plan.save(update_fields=["state", "error", "files", "result", "review", "finished_at"])


def _write(folder: Path, files: list[PlanFile]) -> list[str]:
    arguments = ["--usage", str(folder / "usage.json")]
    texts = {"usage.json": json.dumps(usage_file())}
    for number, one in enumerate(files):
        suffix = "json" if one.kind == PlanFile.Kind.PROFILE else "toml"
        place = f"{one.kind}-{number}.{suffix}"
        texts[place] = one.content
        path = str(folder / place)
        arguments += [f"--{one.kind}", f"{one.subject}={path}" if one.kind == PlanFile.Kind.PROFILE else path]
    write_files(folder, texts)
    return arguments


def _review(folder: Path, plan: Plan) -> dict[str, object] | None:
    """Return how the last plan held; None where there is none, or nothing happened since."""
    before = Plan.objects.filter(state=Plan.State.DONE).exclude(pk=plan.pk).order_by("-created_at").first()
    if before is None or before.result is None:
        return None
    write_files(folder, {"before.json": json.dumps(before.result)})
    try:
        return run_capacity(folder, "review", str(folder / "before.json"), "--usage", str(folder / "usage.json"))
    except NotMade as error:
        return {"error": str(error)}  # the new plan stands whether or not the old one can be judged
