"""A model's contract on its page and in the API: how to call it, and what one call costs."""

from __future__ import annotations

import pytest

from billing import typical_calls
from billing.models import Usage
from billing.pricing import cost_nano_usd
from billing.typical_calls import typical_call
from marketplace.catalog import call_price
from marketplace.catalog.call_price import price_of_call
from marketplace.catalog.selectors import price_of
from marketplace.web.snippets import build_snippets
from marketplace.web.templatetags.intarsia import usd
from tests.marketplace.web.conftest import World
from tests.marketplace.web.test_claims import MODEL, text

CONTRACT = {
    "instruction_tokens": 1_048,
    "max_tokens": 24,
    "output_schema": {"enum": ["groceries", "<b>"]},
    "messages": "single",
    "system": "replace",
    "logprobs": "none",
}


@pytest.fixture
def contracted(world: World) -> World:
    world.published.contract = CONTRACT
    world.published.save(update_fields=["contract"])
    return world


def test_a_model_without_a_contract_is_called_as_before(world: World) -> None:
    page = text(world, MODEL, world.consumer)
    assert "brings its own instructions" not in page and "max_tokens" in page and "System message" in page


def test_the_page_says_how_to_call_it_and_its_snippets_send_nothing_else(contracted: World) -> None:
    page = text(contracted, MODEL, contracted.consumer)
    assert "Send one user message and nothing else" in page
    assert "1,048 tokens before each prompt" in page and "&lt;b&gt;" in page
    assert "at most 24 tokens; one that is cut off there is free" in page
    assert "max_tokens" not in page and "temperature" not in page and "System message" not in page
    assert "at most 24 answer tokens" in page
    contracted.published.contract = CONTRACT | {"system": "append", "output_schema": None, "messages": "chat"}
    contracted.published.save(update_fields=["contract"])
    page = text(contracted, MODEL, contracted.consumer)
    assert "Send your messages" in page and "System message" in page and "Schema of the answers" not in page


def test_the_price_of_a_call_is_the_median_of_the_last_ones(contracted: World, monkeypatch: pytest.MonkeyPatch) -> None:
    version, price = contracted.published, price_of(version=contracted.published)
    assert price is not None
    found = typical_call(creator_organization_id=contracted.seller.pk, version_id=version.pk)
    assert found is not None and found.predictions == Usage.objects.filter(version_id=version.pk).count() >= 20
    shown = usd(cost_nano_usd(price.point(), found.usage))
    assert f"{shown}, the median of the last {found.predictions} calls" in text(contracted, MODEL)
    # Fewer would say something about a single customer: then the page names the most that a call can cost.
    monkeypatch.setattr(typical_calls, "LEAST_PREDICTIONS", found.predictions + 1)
    message = "x" * 100
    most = price_of_call(model=contracted.model, version=version, price=price, message=message)
    assert most is not None and most.predictions is None
    assert most.usage.completion_tokens == 24
    context = contracted.model.base_model.context_length
    assert most.usage.prompt_tokens == min(context, 1_048 + 100 + call_price.TEMPLATE_TOKENS)
    assert price_of_call(model=contracted.model, version=version, price=price, message="") is None


def test_another_versions_calls_are_not_counted(contracted: World) -> None:
    creator = contracted.seller.pk
    assert typical_call(creator_organization_id=creator, version_id=contracted.verified.pk) is None
    assert typical_call(creator_organization_id=contracted.buyer.pk, version_id=contracted.published.pk) is None


def test_the_api_gives_the_public_part_to_everybody(contracted: World) -> None:
    client = contracted.client(None)
    (version,) = client.get("/api/v1/models/ledgerline/transactions/versions").json()["results"]
    assert version["contract"] == CONTRACT and "report" not in version


def test_snippets_of_a_contract_hold_the_message_alone() -> None:
    messages = [{"role": "user", "content": "hi"}]
    for snippet in build_snippets(model_name="a/b", messages=messages, api_base="https://x/v1", has_contract=True):
        assert "hi" in snippet.code and "max_tokens" not in snippet.code and "temperature" not in snippet.code
