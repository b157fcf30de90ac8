"""Staff give files and ask for plans; a worker makes one at a time."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from celery import current_app
from django.db import IntegrityError, transaction
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.accounts.models import User
from marketplace.operations.acts import record_act
from marketplace.planning.documents import plan_document, profiled_base, review_document
from marketplace.planning.errors import NotMade
from marketplace.planning.models import Plan, PlanFile
from marketplace.planning.process import SECONDS, run_capacity, write_files
from marketplace.planning.usage import usage_file

MAX_BYTES = 4 << 20
WORK_SECONDS = 3 * SECONDS  # a plan and a review, with all around them; a worker that takes longer is killed
_ABANDONED = timedelta(seconds=WORK_SECONDS + 30)  # a worker that was killed leaves its plan behind
_EVERY = timedelta(days=7)
_NEEDED = (PlanFile.Kind.PROFILE, PlanFile.Kind.PRICES, PlanFile.Kind.PROMISES)
PLAN_TASK = "marketplace.planning.make_plan"


@transaction.atomic
def add_file(*, kind: str, subject: str, content: bytes, by: User) -> PlanFile:
    """Keep a file for the plans from now on. Raises InvalidInput; the figures are judged when a plan is made."""
    if kind not in PlanFile.Kind.values:
        raise InvalidInput(f"must be one of {', '.join(PlanFile.Kind.values)}", field="kind")
    if (kind == PlanFile.Kind.PROFILE) != bool(subject):
        raise InvalidInput("name the accelerator of a profile, and of nothing else", field="subject")
    if "=" in subject or not subject.isprintable():  # it becomes `--profile SUBJECT=FILE`
        raise InvalidInput("must be printable, without an equals sign", field="subject")
    if not 1 <= len(content) <= MAX_BYTES:
        raise InvalidInput(f"must have 1 to {MAX_BYTES:,} bytes", field="file")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidInput("is no text in UTF-8", field="file") from None
    if "\0" in text:
        raise InvalidInput("has a zero byte", field="file")
    base = profiled_base(content) if kind == PlanFile.Kind.PROFILE else ""
    digest = hashlib.sha256(content).hexdigest()
    made = PlanFile.objects.create(kind=kind, subject=subject, base=base, content=text, sha256=digest, by=by.pk)
    record_act(by=by, act="plan_file.added", subject=made.name, data={"kind": kind, "sha256": digest})
    return made


def newest_files() -> list[PlanFile]:
    """Return the files that the next plan is made from."""
    return list(PlanFile.objects.order_by("kind", "subject", "base", "-id").distinct("kind", "subject", "base"))


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


def ask_weekly() -> Plan | None:
    """Ask for a plan where the last one, made or not, is a week old and the files are there."""
    if missing_files() or Plan.objects.filter(created_at__gt=timezone.now() - _EVERY).exists():
        return None
    try:
        return ask_for_plan(by=None)
    except Conflict:  # staff asked at this moment
        return None


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


def make(plan: Plan, extra: Sequence[str] = ()) -> None:
    """Make a claimed plan, and the review of the one before. Whatever happens, it ends as made or not made.

    extra: more flags of `python -m capacity plan`
    """
    files = newest_files()
    plan.files = {one.name: one.sha256 for one in files}
    plan.state, plan.error = Plan.State.FAILED, "its worker failed; the log of the worker says why"
    try:
        with tempfile.TemporaryDirectory(prefix="plan-") as name:
            folder = Path(name)
            arguments = _write(folder, files)
            result = run_capacity(folder, "plan", *arguments, *extra)
            plan_document(result)  # one that no page could show is not made
            plan.result = result
            plan.review = _review(folder, plan)
        plan.state, plan.error = Plan.State.DONE, ""
    except NotMade as error:
        plan.error = str(error)[:2000]
    finally:
        plan.finished_at = timezone.now()
        _end(plan)


def _end(plan: Plan) -> None:
    """Keep how a plan ended, unless it was given up meanwhile."""
    fields = ("state", "error", "files", "result", "review", "finished_at")
    running = Plan.objects.filter(pk=plan.pk, state=Plan.State.RUNNING)
    if not running.update(**{name: getattr(plan, name) for name in fields}):
        plan.refresh_from_db()


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
        found = run_capacity(folder, "review", str(folder / "before.json"), "--usage", str(folder / "usage.json"))
        review_document(found)
        return found
    except NotMade as error:
        return {"error": str(error)}  # the new plan stands whether or not the old one can be judged
