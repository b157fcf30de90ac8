"""Whatever a page does, an operation of the APIs does: by enumeration of both maps of addresses."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver

from marketplace.api.description import description
from marketplace.web import urls
from tests.marketplace.web.page_operations import BY_API, PAGES_ALONE
from tests.marketplace.web.page_roles import CHANGE, READ

# Addresses of the site outside `marketplace.web`, by the folder: they belong to a machine or to signing in.
OUTSIDE = {
    "accounts/": "sign-up, sign-in, proofs, addresses, second factors, passkeys: allauth's forms; programs have keys",
    "device": "the page on which a person lets a machine have a key",
    "oauth/": "the machine's side of the same (RFC 8628)",
    "api/v1/": "the control API itself",
    ".well-known/": "the receipt keys, which get_receipt_keys gives too",
    "internal/v1/": "replicas alone",
    "metrics": "Prometheus alone",
    "webhooks/stripe": "Stripe alone",
}
WRITES = {"post", "put", "patch", "delete"}


def table() -> dict[str, set[str]]:
    """Operations by page."""
    found: dict[str, set[str]] = {}
    for line in BY_API.strip().splitlines():
        pages, operations = line.split(":")
        for page in pages.split():
            assert page not in found, f"{page} stands twice"
            found[page] = set(operations.split())
    return found


def operations() -> dict[str, str]:
    """The method of every operation of both APIs, by its id."""
    return {
        one["operationId"]: method for methods in description()["paths"].values() for method, one in methods.items()
    }


def test_every_page_names_operations_that_exist_or_says_why_it_is_a_page_alone() -> None:
    pages = {str(pattern.name) for pattern in urls.urlpatterns}
    listed, known = table(), operations()
    assert listed.keys() | PAGES_ALONE.keys() == pages and not listed.keys() & PAGES_ALONE.keys()
    named = set().union(*listed.values())
    assert named <= known.keys(), f"no such operation: {sorted(named - known.keys())}"


def test_every_form_has_an_operation_that_writes_and_every_page_one_that_reads() -> None:
    known, looked_at = operations(), {"verify_receipt", "playground", "alerts"}
    changes = {page for pages in CHANGE.values() for page in pages.split()}
    reads = {page for pages in READ.values() for page in pages.split()}
    for page, named in table().items():
        methods = {known[one] for one in named}
        if page in changes - looked_at:  # a receipt is only looked at, though its form is sent
            assert methods & WRITES, f"{page} has a form, and no operation that writes"
        if page in reads - changes:
            assert "get" in methods or page == "staff_refunds", f"{page} shows something, and no operation reads it"


def test_the_addresses_outside_the_pages_are_those_of_machines_and_of_signing_in() -> None:
    prefixes = [str(one.pattern) for one in _patterns(get_resolver().url_patterns) if not _is_web(one)]
    unknown = {prefix for prefix in prefixes if not any(prefix.startswith(known) for known in OUTSIDE)}
    assert not unknown, "an address that is no page and no operation: say who calls it"


def _patterns(found: list[URLPattern | URLResolver]) -> Iterator[URLPattern | URLResolver]:
    for one in found:
        if isinstance(one, URLResolver) and not str(one.pattern) and not _is_web(one):
            yield from _patterns(one.url_patterns)
        else:
            yield one


def _is_web(one: URLPattern | URLResolver) -> bool:
    return isinstance(one, URLResolver) and one.urlconf_module is urls
