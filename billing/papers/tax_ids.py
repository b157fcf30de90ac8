"""Tax ids: what form they have in which country, and what they are called there. The form alone is checked."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from importlib import resources

_EU = "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK"
EU = frozenset(_EU[place : place + 2] for place in range(0, len(_EU), 3))


@dataclass(frozen=True, slots=True)
class TaxIdForm:
    """`stripe_type` is the name at Stripe; `pattern` matches an id in capitals without spaces, dots and dashes."""

    stripe_type: str
    label: str
    pattern: re.Pattern[str]
    example: str


_FORMS = {
    "GB": TaxIdForm("gb_vat", "VAT", re.compile(r"GB([0-9]{9}([0-9]{3})?|(GD|HA)[0-9]{3})"), "GB123456789"),
    "CH": TaxIdForm("ch_vat", "UID", re.compile(r"CHE[0-9]{9}(MWST|TVA|IVA)"), "CHE123456789MWST"),
    "NO": TaxIdForm("no_vat", "MVA", re.compile(r"[0-9]{9}MVA"), "123456789MVA"),
    "US": TaxIdForm("us_ein", "EIN", re.compile(r"[0-9]{9}"), "12-3456789"),
    "CA": TaxIdForm("ca_gst_hst", "GST/HST", re.compile(r"[0-9]{9}RT[0-9]{4}"), "123456789RT0002"),
    "AU": TaxIdForm("au_abn", "ABN", re.compile(r"[0-9]{11}"), "12345678912"),
    "NZ": TaxIdForm("nz_gst", "GST", re.compile(r"[0-9]{8,9}"), "123456789"),
    "IN": TaxIdForm("in_gst", "GSTIN", re.compile(r"[0-9]{2}[0-9A-Z]{13}"), "12ABCDE3456FGZH"),
    "JP": TaxIdForm("jp_trn", "Registration number", re.compile(r"T[0-9]{13}"), "T1234567891234"),
    "SG": TaxIdForm("sg_gst", "GST", re.compile(r"[0-9A-Z]{9,10}"), "M12345678X"),
}
_ELSEWHERE = TaxIdForm("", "Tax id", re.compile(r"[0-9A-Z]{4,24}"), "")


@functools.cache
def countries() -> dict[str, str]:
    """Return the English name of each country by its ISO 3166-1 code of two letters."""
    text = resources.files(__package__).joinpath("countries.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)
    return found


def form_of(country: str) -> TaxIdForm:
    """Return the form of tax ids in a country."""
    if country in EU:
        prefix = "EL" if country == "GR" else country
        return TaxIdForm("eu_vat", "VAT", re.compile(rf"{prefix}[0-9A-Z+*]{{2,12}}"), f"{prefix}123456789")
    return _FORMS.get(country, _ELSEWHERE)


def normalized(text: str) -> str:
    """Return a tax id in capitals, without the spaces, dots, dashes and slashes that people write between."""
    return re.sub(r"[\s./-]", "", text).upper()


def labelled(tax_id: str, *, country: str) -> str:
    """Return a tax id as papers print it: "VAT DE123456789"."""
    return f"{form_of(country).label} {tax_id}" if tax_id else ""
