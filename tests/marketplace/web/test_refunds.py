"""A refunded prediction is shown as refunded, and costs nothing, on its pages."""

from __future__ import annotations

from django.urls import reverse

from billing.services import refund_prediction_sync
from tests.billing.support import USAGE_COST, hold_request, place, settle
from tests.marketplace.web.conftest import World


def test_usage_page_and_receipt_say_that_a_prediction_was_refunded(world: World) -> None:
    request = place(hold_request(world.buyer, world.seller))
    settle(request.prediction_id)
    client = world.client(world.consumer)
    receipt = reverse("web:receipt", kwargs={"prediction_id": request.prediction_id})
    price = f"${USAGE_COST / 1e9:.9f}"
    assert "refunded" not in client.get(reverse("web:usage")).content.decode()
    assert f"<h1>{price}</h1>" in client.get(receipt).content.decode()
    assert refund_prediction_sync(prediction_id=request.prediction_id, reason="the answer never went out")
    assert client.get(reverse("web:usage")).content.decode().count("refunded") == 1
    page = client.get(receipt).content.decode()
    assert "<h1>$0" in page and f"{price} went back to your wallet" in page
