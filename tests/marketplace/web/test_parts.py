"""The pure parts: cards, charts, money, snippets, policy."""

from __future__ import annotations

import ast
import json
from datetime import date

import pytest

from marketplace.accounts.playground_tokens import verify_playground_token
from marketplace.catalog.models import Version
from marketplace.web.cards import render_card
from marketplace.web.charts import AccuracyBar, build_day_chart
from marketplace.web.middleware import build_policy
from marketplace.web.snippets import build_snippets
from marketplace.web.templatetags.intarsia import tone, usd, usd_cents, usd_micro
from tests.marketplace.web.conftest import World

ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:x)",
    "![x](https://spy.example/p.png)",
    "<a href='https://x' style='position:fixed'>x</a>",
    "<svg><animate onbegin=alert(1)>",
    "<https://x.example/%22onmouseover=alert(1)//>",
    "|a|\n|-|\n|<iframe src=//x>|",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_in_a_card_is_neutralised(attack: str) -> None:
    html = render_card(attack)
    for bad in ("<script", "<img", "<svg", "<iframe", "<a href='https", 'href="javascript', 'href="data', 'href="vb'):
        assert bad not in html.lower()
    assert " style=" not in html.replace("&lt;a href='https://x' style=", "")


def test_an_attack_in_a_card_never_reaches_the_page(world: World) -> None:
    world.model.card_markdown, world.model.title = "\n\n".join(ATTACKS), "<script>alert(2)</script>"
    world.model.example_messages = [{"role": "user", "content": "</textarea><script>alert(3)</script>"}, "nonsense"]
    world.model.save()
    page = world.client(world.consumer).get("/models/ledgerline/transactions").content.decode()
    assert "<script>alert" not in page and "onerror=alert(1)>" not in page.replace("onerror=alert(1)&gt;", "")


def test_a_card_keeps_what_people_write() -> None:
    html = render_card("# Title\n\n**b** `c` [l](https://x.example)\n\n| a |\n|---|\n| 1 |\n")
    assert "<h3>Title</h3>" in html and "<td>1</td>" in html
    assert 'rel="nofollow noopener noreferrer ugc"' in html
    assert "Title" not in render_card("# Title\n\ntext", title="Title")


@pytest.mark.parametrize(
    ("nano", "text"),
    [(0, "$0.00"), (1, "$0.000000001"), (1_500_000_000, "$1.50"), (-20_000_000, "−$0.02"), (10**15, "$1,000,000.00")],
)
def test_money_prints_exactly(nano: int, text: str) -> None:
    assert usd(nano) == text


def test_a_balance_is_never_rounded_up() -> None:
    assert usd_cents(9_999_999_999) == "$9.99"
    assert usd_cents(-9_999_999_999) == "−$9.99"
    assert usd_cents(9_999_999) == "$0.009999999"
    assert usd_micro(200_000) == "$0.20"


def test_every_state_of_a_version_but_retired_has_a_colour() -> None:
    assert {state: tone(state) for state in Version.State.values if not tone(state)} == {"retired": ""}
    assert tone("created") == ""


def test_a_day_chart_fills_gaps_and_keeps_small_days_visible() -> None:
    chart = build_day_chart({date(2026, 1, 3): 10**6, date(2026, 1, 2): 1}, last=date(2026, 1, 3), days=3)
    assert [bar.value for bar in chart.bars] == [0, 1, 10**6]
    assert chart.bars[1].height == 2.0 and chart.bars[2].height == 120
    assert [bar.day for bar in chart.rows] == [date(2026, 1, 3), date(2026, 1, 2)]
    assert build_day_chart({}, last=date(2026, 1, 3), days=30).maximum == 0


def test_accuracy_is_percent_and_points() -> None:
    bar = AccuracyBar(120, 113, 31)
    assert (bar.adapter.percent, bar.base.percent) == (94.2, 25.8)
    assert (bar.adapter.low, bar.adapter.high, bar.against_base) == (88.4, 97.1, "68.4 points above the base")
    assert AccuracyBar(0, 0, 0).adapter.percent == 0.0
    assert not bar.grey and AccuracyBar(120, 113, 31, older=True).grey and AccuracyBar(49, 49, 0).grey


def test_snippets_survive_quotes_in_messages() -> None:
    nasty = [{"role": "user", "content": 'it\'s "quoted" \\ </code> $(rm) `x`\nnew line'}]
    curl, python, javascript = build_snippets(model_name="a/b", messages=nasty, api_base="https://x/v1")
    import shlex

    body = json.loads(shlex.split(curl.code.replace("\\\n", " "))[-1])
    assert body["messages"] == nasty
    calls = [
        node for node in ast.walk(ast.parse(python.code)) if isinstance(node, ast.keyword) and node.arg == "messages"
    ]
    assert ast.literal_eval(calls[0].value) == nasty
    assert json.dumps(nasty[0]["content"]) in javascript.code


def test_the_playground_hands_tokens_to_spenders_only(world: World) -> None:
    path = "/playground/token"
    assert world.client(None).post(path).status_code == 401
    assert world.client(world.consumer).get(path).status_code == 405
    token = world.client(world.developer).post(path).json()["token"]
    assert verify_playground_token(token).organization_id == world.buyer.pk
    world.buyer.memberships.filter(user=world.developer).update(role="billing")
    refused = world.client(world.developer).post(path)
    assert refused.status_code == 403 and "token" not in refused.json()


def test_the_policy_names_the_payment_pages() -> None:
    assert build_policy(stripe_api_base="").endswith(
        "form-action 'self' https://checkout.stripe.com https://connect.stripe.com"
    )
    assert build_policy(stripe_api_base="http://127.0.0.1:8123/v1").endswith(" http://127.0.0.1:8123")
