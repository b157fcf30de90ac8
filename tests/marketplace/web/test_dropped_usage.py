"""Pages say that single predictions of a dropped month are not kept any more; strangers learn nothing."""

from __future__ import annotations

from datetime import UTC, date, datetime

from django.db import connection
from django.urls import reverse

from billing.models import DroppedUsage
from tests.billing.support import hold_request, place, settle
from tests.database import as_superuser
from tests.marketplace.receipts.conftest import move
from tests.marketplace.web.conftest import World


def test_a_dropped_prediction_leads_to_the_usage_page_which_says_since_when_details_are_kept(world: World) -> None:
    request = place(hold_request(world.buyer, world.seller))
    settle(request.prediction_id)
    move(request.prediction_id, datetime(2024, 5, 10, tzinfo=UTC))
    client = world.client(world.consumer)
    assert "Single predictions are kept since" not in client.get(reverse("web:usage")).content.decode()
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("DELETE FROM billing_usage WHERE prediction_id = %s", [request.prediction_id])
        DroppedUsage.objects.create(month=date(2024, 5, 1), predictions=1, cost_nano_usd=44)
        cursor.execute("SET LOCAL session_replication_role = origin")

    page = reverse("web:receipt", args=[request.prediction_id])
    answer = client.get(page, follow=True)

    text = answer.content.decode()
    assert answer.redirect_chain == [(reverse("web:usage"), 302)]
    assert "from before 2024-06-01 are not kept any more" in text
    assert "Single predictions are kept since 1 Jun 2024" in text
    for user in (world.creator, world.stranger):
        assert world.client(user).get(page).status_code == 404
