"""The checkout page for browsers: plain HTML that says that it is a double, and works without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from devstack.stripe_double import tax
from devstack.stripe_double.cards import TEST_CARDS
from devstack.stripe_double.messages import JsonObject, Response
from protocol.money import CENTS, usd

_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    # No form-action: paying redirects to the shop, which is another origin.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
_STYLE = """
:root { color-scheme: light dark; --ink: #1a1f36; --soft: #4f566b; --page: #f6f8fa; --card: #fff; --line: #d5dbe1;
  --go: #4338ca; --go-ink: #fff; --warn: #fff4d6; --warn-ink: #6b4700; }
@media (prefers-color-scheme: dark) { :root { --ink: #f5f6f8; --soft: #b6bdc9; --page: #12151c; --card: #1c212b;
  --line: #394150; --go: #a5b4fc; --go-ink: #14172a; --warn: #3d2f0a; --warn-ink: #ffe2a3; } }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; padding: 1rem; background: var(--page);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
main { width: 100%; max-width: 26rem; background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  padding: 1.5rem; }
.double { margin: 0 0 1.25rem; padding: .6rem .8rem; border-radius: .5rem; background: var(--warn);
  color: var(--warn-ink); font-size: .9rem; }
h1 { margin: 0; font-size: 1rem; font-weight: 500; color: var(--soft); }
.amount { margin: .1rem 0 1.25rem; font-size: 2.25rem; font-weight: 650; font-variant-numeric: tabular-nums; }
dl { margin: 0 0 1.5rem; display: grid; grid-template-columns: auto 1fr; gap: .35rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
fieldset { margin: 0 0 1.25rem; padding: .5rem .8rem; border: 1px solid var(--line); border-radius: .5rem; }
legend { color: var(--soft); font-size: .9rem; } small { color: var(--soft); }
label { display: flex; gap: .6rem; align-items: baseline; padding: .25rem 0; cursor: pointer; }
label.typed { display: block; cursor: auto; }
.typed input, .typed select { display: block; width: 100%; padding: .5rem .6rem; border: 1px solid var(--line);
  border-radius: .4rem; background: var(--page); color: var(--ink); font: inherit; }
.refused { margin: 0 0 1rem; padding: .6rem .8rem; border: 1px solid currentColor; border-radius: .5rem; }
button, .button { display: block; width: 100%; padding: .75rem; border: 1px solid transparent; border-radius: .5rem;
  font: inherit; font-weight: 600; text-align: center; text-decoration: none; cursor: pointer; }
.pay { background: var(--go); color: var(--go-ink); }
.cancel { margin-top: .6rem; background: transparent; color: var(--ink); border-color: var(--line); }
button:focus-visible, .button:focus-visible { outline: 3px solid var(--go); outline-offset: 2px; }
"""


def plain_page(status: int, title: str, content: str) -> Response:
    """Return a page in the double's frame, which says that no real money moves."""
    text = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head>
<body><main>
<p class="double"><strong>Test double of Stripe.</strong> No card is charged and no real money moves.</p>
{content}
</main></body></html>
"""
    return Response(status, text.encode(), _HEADERS)


def checkout_page(session: JsonObject | None, *, refused: str = "", typed: Mapping[str, str] | None = None) -> Response:
    """Return the page of a session in any state; 404 for None.

    `refused` is what the last try was told, and `typed` what its form had.
    """
    if session is None:
        return plain_page(404, "No such page", "<h1>There is no such checkout page.</h1>")
    if session["status"] == "expired":
        return plain_page(
            410,
            "Checkout expired",
            "<h1>This checkout page has expired. Nothing was charged.</h1>" + _back(session, "Go back"),
        )
    if session["status"] == "complete":
        done = f'<h1>This is paid.</h1><a class="button pay" href="{escape(success_url(session))}">Continue</a>'
        return plain_page(200, "Paid", done)
    amount = session["amount_total"]
    action = "Save this card" if amount is None else f"Pay {usd(amount, CENTS)}"
    typed = typed or {}
    chosen = typed.get("card", "pm_card_visa")
    choices = "".join(
        f'<label><input type="radio" name="card" value="{escape(name)}"{" checked" if name == chosen else ""}>'
        f"<span>•••• {card.last4} <small>{escape(card.label)}</small></span></label>"
        for name, card in TEST_CARDS.items()
    )
    return plain_page(
        200 if not refused else 402,
        f"{action} · test double",
        f"""<h1>{escape(session["_description"])}</h1>
{"" if amount is None else f'<p class="amount">{usd(amount, CENTS)}</p>'}
{f'<p class="refused" role="alert">{escape(refused)}</p>' if refused else ""}
<dl><dt>Reference</dt><dd>{escape(session["client_reference_id"] or session["id"])}</dd></dl>
<form method="post" action="/checkout/{escape(session["id"])}">
{_payer_fields(session.get("_asked", []), typed)}<fieldset><legend>Test card</legend>{choices}</fieldset>
<button class="pay" id="pay">{action}</button></form>
{_back(session, "Cancel and go back")}""",
    )


def _payer_fields(asked: list[str], typed: Mapping[str, str]) -> str:
    """Return the fields that a page with tax has; Stripe's own page asks for the whole address."""
    chosen = typed.get("country", "US")
    countries = "".join(
        f"<option{' selected' if country == chosen else ''}>{country}</option>" for country in tax.COUNTRIES
    )
    name, tax_id = (escape(typed.get(field, "")) for field in ("name", "tax_id"))
    fields = {
        "name": f'<label class="typed">Name<input name="name" autocomplete="name" value="{name}"></label>',
        "country": f'<label class="typed">Country<select name="country">{countries}</select></label>',
        "tax_id": '<label class="typed">VAT number of a business <small>(optional)</small>'
        f'<input name="tax_id" placeholder="DE123456789" value="{tax_id}"></label>',
    }
    if not asked:
        return ""
    note = "<small>Tax of the country comes on top; a business elsewhere in the EU pays none.</small>"
    body = "".join(fields[field] for field in asked)
    return f"<fieldset><legend>Billing details</legend>{body}{note}</fieldset>"


def bank_page(session: JsonObject, card: str) -> Response:
    """Return the question of the card's bank (3-D Secure)."""
    answers = "".join(
        f'<button class="{look}" name="approve" value="{value}" id="{name}">{text}</button>'
        for look, value, name, text in (
            ("pay", "yes", "approve", "Yes, it is me"),
            ("cancel", "no", "refuse", "No, refuse it"),
        )
    )
    return plain_page(
        200,
        "Your bank asks · test double",
        f"""<h1>Your bank asks: are you paying {usd(session["amount_total"], CENTS)}?</h1>
<form method="post" action="/checkout/{escape(session["id"])}">
<input type="hidden" name="card" value="{escape(card)}">{answers}</form>""",
    )


def success_url(session: JsonObject) -> str:
    """Return the address for a customer who has paid, with Stripe's one placeholder filled in."""
    return str(session["success_url"]).replace("{CHECKOUT_SESSION_ID}", session["id"])


def _back(session: JsonObject, label: str) -> str:
    if not session["cancel_url"]:
        return ""
    return (
        f'<form method="post" action="/checkout/{escape(session["id"])}/cancel">'
        f'<button class="cancel" id="cancel">{escape(label)}</button></form>'
    )
