"""Filters that print money and digests. Integers in, text out: no float ever holds money."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django import template
from django.core.serializers.json import DjangoJSONEncoder
from django.template import Context
from django.urls import reverse
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from marketplace.accounts import features
from marketplace.catalog.licences import name_of, url_of
from marketplace.catalog.models import Model
from marketplace.catalog.search.why import mark
from marketplace.guards.policies import KINDS
from marketplace.publishing.models import Review
from marketplace.publishing.policies import sentences
from marketplace.web.act_words import ACT_WORDS
from marketplace.web.figures import BadFigure, redrawn
from marketplace.web.menu import WITHIN
from marketplace.web.wording import BANK_REASONS, DISPUTE_REASONS, ENDS, LABELS, TONES
from protocol import money

register = template.Library()
_WOODS = ("oak", "maple", "walnut", "padauk", "moss", "indigo")


def _usd(amount: int, unit: int = money.NANO) -> str:
    return money.usd(int(amount), unit, minus="−")


@register.simple_tag
def switched_off(name: str, organization_id: UUID) -> str:
    """Return what people read where staff switched a feature off; empty where it is on."""
    return "" if features.is_on(name, organization_id) else features.FEATURES[name].refusal


@register.filter
def usd(nano: Any) -> str:
    """Nano-dollars, exactly."""
    return "" if nano in (None, "") else _usd(nano)


@register.filter
def in_unit(value: int, unit: str) -> str:
    """Return a chart's value in its unit: `usd` for nano-dollars, `count` for anything counted."""
    return usd(value) if unit == "usd" else f"{value:,}"


@register.filter
def usd_pico(pico: Any) -> str:
    """Pico-dollars, exactly: the price of a token is a whole number of them."""
    return "" if pico in (None, "") else _usd(pico, 12)


@register.filter
def usd_cents(nano: Any) -> str:
    """Nano-dollars, rounded toward zero to whole cents: a balance never looks larger than it is.

    Below a cent they print exactly, for a few predictions cost less and are not nothing.
    """
    if nano in (None, ""):
        return ""
    amount = int(nano)
    if abs(amount) < 10**7:
        return _usd(amount)
    cents = abs(amount) // 10**7
    return _usd(-cents if amount < 0 else cents, money.CENTS)


@register.filter
def usd_micro(micro: Any) -> str:
    """Micro-dollars, exactly: the unit of prices per million tokens."""
    return "" if micro in (None, "") else _usd(micro, 6)


def _decimal(bps: int, digits: int) -> str:
    """Return basis points as a decimal with `digits` places at most: 12500, 4 → 1.25."""
    whole, fraction = divmod(int(bps), 10**digits)
    return f"{whole:,}.{fraction:0{digits}d}".rstrip("0").rstrip(".")


@register.filter
def times(bps: Any) -> str:
    """Return a multiplier in basis points: 15000 → 1.5 ×."""
    return f"{_decimal(bps, 4)} ×"


@register.filter
def percent(bps: Any) -> str:
    """Return a share in basis points: 1250 → 12.5 %."""
    return f"{_decimal(bps, 2)} %"


@register.filter
def share(value: float) -> str:
    """Return a share as a percentage: 0.975 → 97.5 %."""
    return f"{100 * value:.1f} %"


@register.simple_tag
def marked(text: str, query: str) -> SafeString:
    """Return a text with the words marked by which a search found it."""
    if not query:
        return conditional_escape(text)
    parts = (("<mark>{}</mark>" if one.matched else "{}", one.text) for one in mark(text, query))
    return format_html_join("", "{}", ((format_html(form, part),) for form, part in parts))


@register.filter
def code_spans(text: str) -> SafeString:
    """Return a text with `code` between backticks as code."""
    parts = enumerate(str(text).split("`"))
    return format_html_join("", "{}", ((format_html("<code>{}</code>", p) if i % 2 else p,) for i, p in parts))


@register.filter
def figure(svg: str) -> SafeString:
    """Return a picture of a plan, drawn anew; words where it is none."""
    try:
        return redrawn(svg)
    except BadFigure as error:
        return format_html('<p class="soft">This picture {}.</p>', error)


@register.filter
def licence(identifier: str) -> str:
    """Return the name of a licence that people read."""
    return name_of(identifier)


@register.filter
def licence_url(identifier: str) -> str:
    """Return the address of a known licence's text, else nothing."""
    return url_of(identifier)


@register.filter
def logo(model: Model) -> str:
    """Return the path of a model's own picture on this site; empty without one."""
    return f"/models/{model.full_name}/logo/{model.logo}.png" if model.logo else ""


@register.simple_tag
def inlaid(name: str) -> SafeString:
    """Return the picture of a model without one of its own: three by three squares of wood, drawn by its name."""
    drawn = hashlib.sha256(name.encode()).digest()
    squares = format_html_join(
        "",
        '<rect class="{}" x="{}" y="{}" width="16" height="16"/>',
        ((_WOODS[drawn[place] % len(_WOODS)], place % 3 * 16, place // 3 * 16) for place in range(9)),
    )
    return format_html(
        '<svg class="logo" viewBox="0 0 48 48" width="48" height="48" aria-hidden="true" focusable="false">{}</svg>',
        squares,
    )


@register.filter
def hexadecimal(value: Any) -> str:
    """Return bytes from the database as hex."""
    return bytes(value).hex()


@register.filter
def shortened(text: Any) -> str:
    """Return the first and last characters of a long identifier."""
    value = str(text)
    return value if len(value) <= 18 else f"{value[:10]}…{value[-6:]}"


@register.filter
def cents(amount: Any) -> str:
    """Whole cents."""
    return _usd(amount, money.CENTS)


@register.filter
def words(identifier: Any) -> str:
    """Return a machine's name for something, in words: top_up → top up."""
    return str(identifier).replace("_", " ")


@register.filter
def tone(state: Any) -> str:
    """Return the class that colours the tag of a version's or a top-up's state; empty for a plain tag."""
    return TONES.get(str(state), "")


@register.filter
def bank_says(code: Any) -> str:
    """Return in words why a bank refused a payment."""
    return BANK_REASONS.get(str(code), f"the bank says “{words(code)}”" if code else "the bank gave no reason")


@register.filter
def dispute_reason(code: Any) -> str:
    """Return in words why a bank took a payment back."""
    return DISPUTE_REASONS.get(str(code), f"its reason is “{words(code)}”")


@register.filter
def unix(seconds: Any) -> datetime:
    """The moment of a unix time."""
    return datetime.fromtimestamp(int(seconds), tz=UTC)


@register.filter
def worded(label: str) -> str:
    """Return the label of a field; those of allauth's forms as the other ones are written."""
    return LABELS.get(label, label)


@register.filter
def act_words(act: str) -> str:
    """Return an act of the audit log in words; one that is not recorded any more is returned as it is."""
    return ACT_WORDS.get(act, act)


@register.filter
def ended(reason: Any) -> str:
    """Return in words how an answer ended; a reason that has no words is returned as it is."""
    return ENDS.get(str(reason), words(reason))


@register.filter
def pairs(detail: Any) -> str:
    """Return the entries of a mapping in words: books 1, stripe 2. Anything else is returned as it is."""
    if not isinstance(detail, dict):
        return str(detail)
    return ", ".join(f"{words(name)} {value}" for name, value in detail.items())


@register.simple_tag(takes_context=True)
def menu_link(context: Context, name: str, label: str) -> SafeString:
    """Return a link of a menu to a named page, marked while it, or one of the pages within it, is shown."""
    current = mark_safe(' aria-current="page"') if context.get("route") in (name, *WITHIN.get(name, ())) else ""
    return format_html('<a href="{}"{}>{}</a>', reverse(name), current, label)


@register.filter
def facts_of(data: dict[str, Any]) -> list[str]:
    """Return what an entry of the audit log says, in words; what it leaves empty is left out."""
    lines = []
    for name, value in data.items():
        if value in (None, "", []):
            continue
        money = name.removesuffix("_nano_usd")
        shown = usd(value) if money != name else ", ".join(map(str, value)) if isinstance(value, list) else value
        lines.append(f"{words(money)}: {shown}")
    return lines


@register.filter
def breakable(name: Any) -> SafeString:
    """Return a name that a narrow column breaks behind its slashes and at signs before it breaks a word."""
    return mark_safe(re.sub(r"(?<=[/@])(?=[^/])", "<wbr>", conditional_escape(name)))


@register.filter
def guard_sentence(policy: dict[str, str]) -> str:
    """Return in words what a policy does: "refuses card numbers; masks e-mail addresses"."""
    parts = []
    for action, verb in (("refuse", "refuses"), ("mask", "masks")):
        if kinds := [name for kind, name in KINDS.items() if policy.get(kind) == action]:
            parts.append(f"{verb} {', '.join(kinds)}")
    return "; ".join(parts)


@register.filter
def reasons(review: Review) -> list[str]:
    """The reasons of a review, a sentence each."""
    return sentences(review)


@register.filter
def as_json(value: Any) -> str:
    """Return JSON for an attribute that a script reads; the template escapes it."""
    return json.dumps(value, cls=DjangoJSONEncoder)


# In this order: each browser also names the ones that it descends from.
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
_SYSTEMS = (("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("Mac OS", "macOS"))


@register.filter
def device(user_agent: str) -> str:
    """Return browser and system as people call them; the first words of a header that names neither."""
    browser = next((name for mark_, name in _BROWSERS if mark_ in user_agent), "")
    system = next((name for mark_, name in (*_SYSTEMS, ("Linux", "Linux")) if mark_ in user_agent), "")
    if not browser:
        return user_agent[:40] or "unknown"
    return f"{browser} on {system}" if system else browser
