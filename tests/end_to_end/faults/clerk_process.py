"""A clerk at work, as a process of the platform: corrects charges in part, and pays the maker of the listings out.

python -m tests.end_to_end.faults.clerk_process SEED < pipe > lines of JSON

It prints what it is about to ask for before it asks, and once more when it has the answer; a call whose answer is lost
is made again with the same id. It ends when its input ends, after the last answer.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings")

import django
import httpx

django.setup()

from django.db import DatabaseError, connection  # noqa: E402  these need the app registry

from billing.errors import BillingError, PaymentProviderUnavailable  # noqa: E402
from billing.payouts.accounts import open_onboarding, refresh_account  # noqa: E402
from billing.payouts.services import start_payout  # noqa: E402
from billing.services import correct_prediction  # noqa: E402
from marketplace.accounts.models import Organization  # noqa: E402

PAUSE = 0.2  # seconds between two errands
PAYOUT_EVERY = 10  # errands
PATIENCE = 240.0  # seconds that one errand is tried again
# A charge that is this old has its verdict and, if its answer never went out, its refund.
_NEXT = """
SELECT h.id, (h.cost_nano_usd - coalesce((SELECT sum(amount_nano_usd) FROM billing_correction c
    WHERE c.prediction_id = h.id), 0))::bigint
FROM billing_hold h WHERE h.state = 'settled' AND h.cost_nano_usd > 0 AND h.model_name LIKE 'faults/%'
    AND h.closed_at < now() - interval '3 seconds' ORDER BY h.closed_at DESC LIMIT 40
"""


def say(**fields: object) -> None:
    """Print one line, at once."""
    print(json.dumps(fields, default=str), flush=True)


def until_answered(errand: Callable[[], object]) -> str:
    """Run an errand until it has an answer; return `done`, or the code of a refusal."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            errand()
            return "done"
        except BillingError as refusal:
            if not isinstance(refusal, PaymentProviderUnavailable):
                return refusal.code
        except (DatabaseError, OSError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError("an errand had no answer") from error
            connection.close()
        time.sleep(0.2)


def correct_one(choose: random.Random) -> None:
    """Give a part of one recent charge back, now and then all of it."""
    with connection.cursor() as cursor:
        cursor.execute(_NEXT)
        found = [(prediction, rest) for prediction, rest in cursor.fetchall() if rest > 0]
    if not found:
        return
    prediction, rest = choose.choice(found)
    amount = rest if choose.random() < 0.2 else choose.randint(1, rest)
    correction = uuid.uuid4()
    say(ask="correction", id=correction, prediction=prediction, amount=amount)
    answer = until_answered(
        lambda: correct_prediction(
            prediction_id=prediction, reason="a part was wrong", amount_nano_usd=amount, correction_id=correction
        )
    )
    say(answer=answer, id=correction)


def pay_out(maker: Organization) -> None:
    """Start a payout of all that is payable; what is missing for one is a refusal."""
    payout = uuid.uuid4()
    say(ask="payout", id=payout)
    say(answer=until_answered(lambda: start_payout(organization=maker, payout_id=payout)), id=payout)


def open_account(maker: Organization) -> None:
    """Take the maker through Stripe's pages."""
    page = open_onboarding(organization=maker, return_url="http://localhost/", refresh_url="http://localhost/")
    form = {"account_number": "000123456789", "identity": "clear", "action": "finish"}
    answer = httpx.post(page, data=form, follow_redirects=False, timeout=30, trust_env=False)
    assert answer.status_code == 303, answer.text
    refresh_account(organization_id=maker.pk)


def main() -> None:
    choose = random.Random(int(sys.argv[1]))
    maker = Organization.objects.get(slug="faults")
    open_account(maker)
    say(ready=True)
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    errands = 0
    while not over.wait(PAUSE):
        errands += 1
        try:
            if errands % PAYOUT_EVERY == 0:
                pay_out(maker)
            else:
                correct_one(choose)
        except DatabaseError:  # the database was away before anything was asked for
            connection.close()


if __name__ == "__main__":
    main()
