"""A plan by the real process, from what the books say to what the page shows."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from billing.rollups.services import roll_up as count_usage
from marketplace.planning import services
from marketplace.planning.documents import plan_document
from marketplace.watch.models import Demand
from marketplace.watch.rollup import roll_up
from marketplace.web.figures import redrawn
from tests.capacity.plan_files import CATALOGUE, PRICES, PROMISES
from tests.capacity.profiles import profile
from tests.marketplace.catalog.factories import make_organization, make_user
from tests.marketplace.watch.calls import buyers, call, hours_ago, sold_version

pytestmark = pytest.mark.django_db(transaction=True)
QUICK = ("--requests", "20", "--seeds", "2", "--workers", "1")


def test_from_the_books_to_a_plan() -> None:
    version, (buyer,) = sold_version(), buyers(1)
    for minute in range(3):
        call(version, buyer, hours_ago(2) + timedelta(minutes=minute), prompt_tokens=100, completion_tokens=4)
    count_usage()
    roll_up()
    Demand.objects.bulk_create(
        Demand(version_id=version.pk, hour=hours_ago(hour), latency_class="standard", served=20 + hour % 24)
        for hour in range(3, 24 * 15)
    )
    staff = make_user("staff@example.com", is_staff=True)
    make_organization("intarsia", staff)
    base = version.model.base_model
    model = msgspec.structs.replace(profile().model, fingerprint=base.fingerprint)
    texts = {
        "profile": msgspec.json.encode(profile(model=model)),
        "prices": PRICES.encode(),
        "catalogue": CATALOGUE.encode(),
        "promises": PROMISES.replace("0.9", "0.8").encode(),
    }
    for kind, content in texts.items():
        services.add_file(kind=kind, subject="machine" if kind == "profile" else "", content=content, by=staff)

    services.ask_for_plan(by=None)
    made = services.claim_plan()
    assert made is not None
    services.make(made, QUICK)
    made.refresh_from_db()
    assert (made.error, made.state) == ("", "done")
    assert made.result is not None
    document = plan_document(made.result)
    assert [step.number for step in document.steps] == list(range(1, 14)) and len(document.figures) == 6
    assert document.targets.pools.keys() == {base.line.name} and document.promised[0].base == base.fingerprint
    for figure in document.figures:
        assert redrawn(figure.svg).startswith("<svg ")
