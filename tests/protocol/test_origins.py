"""Which pages may read an answer."""

from __future__ import annotations

import pytest

from protocol.origins import answer_headers, parse_origins, preflight_headers

ALLOWED = parse_origins(" https://App.example, http://localhost:3000,")


def test_a_list_of_origins_is_read() -> None:
    assert sorted(ALLOWED) == ["http://localhost:3000", "https://app.example"]
    assert parse_origins("") == parse_origins(" , ") == frozenset()


@pytest.mark.parametrize("text", ["*", "null", "app.example", "https://a.example/", "https://*.example", "ftp://a"])
def test_whatever_is_not_one_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        parse_origins(f"https://a.example, {text}")


def test_an_answer_names_the_page_that_may_read_it() -> None:
    headers = answer_headers("https://app.example", ALLOWED)
    assert headers["Access-Control-Allow-Origin"] == "https://app.example" and headers["Vary"] == "Origin"
    assert "Access-Control-Allow-Credentials" not in headers, "keys are sent by the page, cookies are not"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://app.example.evil", "null", "", "http://app.example"]
)
def test_other_pages_are_not_named(origin: str) -> None:
    assert answer_headers(origin, ALLOWED) == {"Vary": "Origin"}
    assert preflight_headers(origin, "authorization", ALLOWED) is None


def test_without_a_list_nothing_is_said() -> None:
    assert answer_headers("https://app.example", ()) == {}
    assert preflight_headers("https://app.example", "", ()) is None


def test_a_browser_that_asks_first_is_told_what_it_may_send() -> None:
    headers = preflight_headers("http://localhost:3000", "authorization,x-stainless-os", ALLOWED)
    assert headers is not None and headers["Access-Control-Allow-Headers"] == "authorization,x-stainless-os"
    assert "POST" in headers["Access-Control-Allow-Methods"]
