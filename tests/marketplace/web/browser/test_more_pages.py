"""Pages of organizations, security, jobs, comparisons and reviews, and refusals: looked at as in test_pages.py."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from functools import partial

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.core import mail
from django.db import connection, transaction
from django.template.loader import render_to_string
from django.utils import timezone
from playwright.sync_api import Route

from billing.models import Hold, Usage
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Evaluation, Version
from marketplace.jobs import batches, queue
from marketplace.jobs.files import store_file
from marketplace.jobs.lifecycle import advance
from marketplace.jobs.models import Batch
from marketplace.protection.models import Customer
from marketplace.protection.services import set_protection
from marketplace.publishing.gate import publish_version
from marketplace.publishing.models import Review
from marketplace.teams import invites
from marketplace.trials.models import Trial
from marketplace.trials.rows import Row
from marketplace.trials.running import work_on
from tests.billing.support import hold_request, open_run, place, settle
from tests.database import as_superuser
from tests.eighths import Pick, picked
from tests.marketplace.catalog.factories import PASSWORD, make_organization, make_user
from tests.marketplace.publishing.factories import give_sketch
from tests.marketplace.trials.conftest import FakeApi, fake
from tests.marketplace.vault.factories import make_sold
from tests.marketplace.web.browser.conftest import MODEL, Open
from tests.marketplace.web.browser.looks import Shown, look_at, look_at_all
from tests.marketplace.web.browser.test_comparisons import start
from tests.marketplace.web.conftest import World, sign_receipt

__all__ = ["fake"]  # the fixture
pytestmark = pytest.mark.browser


def team_pages(world: World) -> list[Shown]:
    """The organization with a member and an invitation, seen by its owner, by a member and by whom it invites."""
    mail.outbox.clear()
    invites.invite(organization=world.buyer, by=world.consumer, email=world.stranger.email, role="billing")
    invites.invite(organization=world.buyer, by=world.consumer, email="grace.hopper@northbank.example", role="viewer")
    found = re.search(r"/invites/(\S+)", str(mail.outbox[0].body))
    assert found is not None
    loner, asked = make_user("loner@example.com"), make_user("asked@example.com")
    make_organization("careful", asked)
    Organization.objects.filter(slug="careful").update(requires_second_factor=True)
    return [
        Shown("organization", world.consumer, "/dashboard/organization/settings"),
        Shown("organization-member", world.developer, "/dashboard/organization/settings"),
        Shown("organization-new", world.consumer, "/dashboard/organization/new"),
        Shown("organization-none", loner, "/dashboard/", status=403),
        Shown("members", world.consumer, "/dashboard/members"),
        Shown("invite", world.stranger, f"/invites/{found[1]}"),
        Shown("invite-signed-out", None, f"/invites/{found[1]}"),
        Shown("invite-gone", None, "/invites/gone", status=404),
        Shown("second-factor-needed", asked, "/dashboard/", status=403),
        Shown("role-lacks", world.developer, "/dashboard/wallet", status=403),
        Shown("audit", world.consumer, "/dashboard/audit"),
        Shown("audit-empty", world.stranger, "/dashboard/audit"),
        Shown("platform-audit", world.staff, "/platform/audit"),
    ]


def security_pages(world: World) -> list[Shown]:
    """Second factors that are there, and the ways to them."""
    TOTP.activate(world.developer, generate_totp_secret())
    RecoveryCodes.activate(world.developer)
    Authenticator.objects.create(
        user=world.creator, type=Authenticator.Type.WEBAUTHN, data={"name": "Laptop", "credential": {}}
    )
    factors = "/accounts/2fa"
    return [
        Shown("security", world.developer, "/dashboard/security"),
        Shown("security-passkey", world.creator, "/dashboard/security"),
        Shown("security-empty", world.stranger, "/dashboard/security"),
        Shown("factor-app", world.stranger, f"{factors}/totp/activate/"),
        Shown("factor-app-off", world.developer, f"{factors}/totp/deactivate/"),
        Shown("factor-codes", world.developer, f"{factors}/recovery-codes/"),
        Shown("factor-codes-new", world.developer, f"{factors}/recovery-codes/generate/"),
        Shown("reset-done", None, "/accounts/password/reset/done/"),
        Shown("reset-key", None, "/accounts/password/reset/key/1-x/"),
        Shown("confirm-address", None, "/accounts/confirm-email/gone/"),
        Shown("device-done", world.consumer, "/device?done=confirmed"),
    ]


def run_pages(world: World) -> list[Shown]:
    """A run whose calls follow each other."""
    run = open_run(world.key, metadata={"customer": "4711"}, name="nightly reconciliation")
    terms = {
        "api_key_id": world.key.pk,
        "run_id": run.pk,
        "amount_nano_usd": 100,
        "model_name": world.model.full_name,
        "replica_id": world.booted.replica.pk,
    }
    calls = [place(hold_request(world.buyer, world.seller, **terms)).prediction_id for _ in range(6)]
    for call in calls:
        settle(call, replica_id=world.booted.replica.pk, receipt=sign_receipt(world.booted, call))
    begun = timezone.now() - timedelta(seconds=4)
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for number, call in enumerate(calls):
            started = begun + timedelta(milliseconds=520 * number)
            ended = started + timedelta(milliseconds=430 + 12 * number)
            Hold.objects.filter(pk=call).update(created_at=started, closed_at=ended)
            Usage.objects.filter(prediction_id=call).update(created_at=ended)
        cursor.execute("SET LOCAL session_replication_role = origin")
    return [
        Shown("runs", world.consumer, "/dashboard/runs"),
        Shown("runs-empty", world.stranger, "/dashboard/runs"),
        Shown("run", world.consumer, f"/dashboard/runs/{run.pk}"),
    ]


def batch_pages(world: World) -> list[Shown]:
    """A file of requests, a batch that goes on, one that failed, and one that waits to be read."""
    body = {"model": world.model.full_name, "messages": [{"role": "user", "content": "POS 4821 Northgate Bakery"}]}
    asked = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    rows = "\n".join(json.dumps({"custom_id": f"row-{number}", **asked}) for number in range(120)).encode()
    file = store_file(organization=world.buyer, name="transactions-of-november.jsonl", content=rows)

    def begin() -> Batch:
        batch = batches.create_batch_with_purse(
            organization=world.buyer, input_file_id=file.pk, budget_nano_usd=10**9, created_by=world.consumer
        )
        return batch

    going = begin()
    advance()
    failed = begin()
    Batch.objects.filter(pk=going.pk).update(completed=41, failed=2, cost_nano_usd=1_204_000)
    batches.fail_batch(failed, code="unreadable_file", reason="the input file cannot be read")
    return [
        Shown("batches", world.consumer, "/dashboard/batches"),
        Shown("batches-empty", world.stranger, "/dashboard/batches"),
        Shown("batch", world.consumer, f"/dashboard/batches/{going.pk}"),
        Shown("batch-failed", world.consumer, f"/dashboard/batches/{failed.pk}"),
        Shown("batch-file", world.consumer, f"/dashboard/files/{file.pk}"),
    ]


def trial_pages(world: World, fake: FakeApi) -> list[Shown]:
    """Comparisons: one that a person judges, one that is decided."""
    fake.say = lambda model, message: f"{message} → groceries" if model.endswith("@1") else f"{message} → dining"
    rows = [Row(f"POS 48{number} Northgate Bakery, Leeds, £{number}.40") for number in range(10, 40)]
    judged = start(world, rows=rows, scoring=Trial.Scoring.JUDGE)
    work_on(judged.pk)
    fake.say = lambda model, message: "right" if int(message) % (7 if model.endswith("@1") else 3) else "wrong"
    counted = [Row(f"{number}", "right") for number in range(1, 200)]
    decided = start(world, rows=counted, scoring=Trial.Scoring.JSON)
    work_on(decided.pk)
    return [
        Shown("trials", world.consumer, "/dashboard/comparisons"),
        Shown("trials-empty", world.stranger, "/dashboard/comparisons"),
        Shown("trial-judge", world.consumer, f"/dashboard/comparisons/{judged.pk}"),
        Shown("trial-decided", world.consumer, f"/dashboard/comparisons/{decided.pk}"),
    ]


def protection_pages(world: World) -> list[Shown]:
    """A customer who was noticed and asks for more calls, seen by the creator and by that customer."""
    set_protection(model=world.model, logprobs_open=False, calls_per_day=200, on_copying="slow")
    Customer.objects.create(
        model=world.model,
        organization=world.buyer,
        noticed_at=timezone.now(),
        noticed_distinct=353,
        noticed_calls=360,
        evenness_permille=981,
        asked_at=timezone.now(),
        asked_calls_per_day=5_000,
    )
    return [
        Shown("protection", world.creator, "/dashboard/models/transactions/protection"),
        Shown("model-limited", world.consumer, MODEL),
        Shown("evaluation", None, f"/evaluations/{Evaluation.objects.get().run_id}"),
        Shown("ranking", None, "/ranking"),
    ]


def review_pages(world: World) -> list[Shown]:
    """A version that waits for its review, seen by its creator and by staff."""
    Review.objects.update(state=Review.State.WITHDRAWN)
    version = make_sold(Version.State.VERIFIED, model=world.model).version
    give_sketch(version)
    publish_version(version=version)
    waiting = Review.objects.get(state=Review.State.OPEN)
    return [
        Shown("reviews", world.staff, "/platform/reviews"),
        Shown("review", world.staff, f"/platform/reviews/{waiting.pk}"),
        Shown("my-model-in-review", world.creator, "/dashboard/models/transactions"),
    ]


def result_pages(world: World) -> list[Shown]:
    """Pages that answer a form: keys shown once, and what a form refuses."""
    replica = (("Name", "r2"), ("Host", "10.0.0.7"))
    return [
        Shown("key-created", world.consumer, "/dashboard/keys", fill=(("Name", "reports"),), press="Create key"),
        Shown("key-refused", world.consumer, "/dashboard/keys", fill=(("Name", " "),), press="Create key"),
        Shown(
            "replica-allowed",
            world.staff,
            "/platform/fleet",
            fill=replica,
            press="Make a credential",
        ),
        Shown("not-found", world.consumer, "/dashboard/nothing-here", status=404),
    ]


def fulfil(route: Route, *, body: str) -> None:
    """Answer with a page."""
    route.fulfill(body=body, content_type="text/html")


@picked
def test_more_pages_fit_are_accessible_and_complain_of_nothing(
    open_page: Open, site: tuple[str, World], fake: FakeApi, monkeypatch: pytest.MonkeyPatch, pick: Pick
) -> None:
    world = site[1]
    monkeypatch.setattr(queue, "_send", lambda: None)
    pages = [
        *team_pages(world),
        *security_pages(world),
        *run_pages(world),
        *batch_pages(world),
        *review_pages(world),
        *protection_pages(world),
        *trial_pages(world, fake),
        *result_pages(world),
    ]
    wrong = look_at_all(open_page, pick(pages))
    assert not wrong, "\n".join(wrong)


@pytest.mark.deep
def test_refusals_and_the_second_step_of_signing_in_are_accessible(open_page: Open, site: tuple[str, World]) -> None:
    world, wrong, page = site[1], list[str](), open_page(None)
    TOTP.activate(world.developer, generate_totp_secret())
    for template in ("403.html", "403_csrf.html", "429.html", "500.html"):  # no address answers with them at will
        answer = partial(fulfil, body=render_to_string(template))
        page.route(f"**/{template}", answer)
        page.goto(f"/{template}")
        wrong += look_at(page, template.removesuffix(".html"))
    page.goto("/accounts/login/")
    page.locator("#id_login").fill(world.developer.email)
    page.locator("#id_password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url("**/2fa/authenticate/")
    wrong += look_at(page, "sign-in-second-factor")
    assert not wrong, "\n".join(wrong)
