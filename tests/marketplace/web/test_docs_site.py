"""The documentation on the site: every page is there, links lead somewhere, and examples of the quick start run."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from marketplace.web.docs.markdown import render_page
from marketplace.web.docs.reference import groups
from marketplace.web.docs.shelf import EXAMPLE_SITE, folder, neighbours, shelf
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.django_db


def test_links_between_pages_lead_to_pages_and_headings_of_the_site(client: Client) -> None:
    pages = {name: client.get(f"/docs/{name}").content.decode() for name in shelf()}
    for name, html in pages.items():
        article = html[html.index("<article") : html.index("</article>")]
        assert EXAMPLE_SITE not in article
        for target, anchor in re.findall(r'href="/docs/([a-z-]+)(?:#([^"]*))?"', article):
            assert target in pages, f"{name} links to {target}"
            assert not anchor or f'id="{anchor}"' in pages[target], f"{name} links to {target}#{anchor}"
        assert not re.search(r'href="[^":]*\.md', article), name


def test_raw_html_is_text_and_a_link_to_another_file_is_its_words() -> None:
    rendered = render_page(
        "## One\n<script>alert(1)</script> [x](../secret.py) [y](b.md#z) [b.md](b.md)\n\n    <b>",
        resolve={"b.md": ("/b", "The letter B")}.get,
    )
    assert "<script" not in rendered.html and "<b>" not in rendered.html
    assert "secret" not in rendered.html and '<a href="/b#z">y</a> <a href="/b">The letter B</a>' in rendered.html
    assert [heading.anchor for heading in rendered.headings] == ["one"]


def test_the_pages_have_an_order(client: Client) -> None:
    first, *_, last = shelf()
    assert neighbours(first)[0] is None and neighbours(last)[1] is None
    assert client.get("/docs/no-such-page").status_code == 404
    assert client.get("/docs/../settings").status_code == 404


def test_the_reference_has_every_operation_of_the_description(client: Client) -> None:
    document = client.get(reverse("api:schema")).json()
    written = {one["operationId"] for methods in document["paths"].values() for one in methods.values()}
    assert {operation.id for group in groups() for operation in group.operations} == written
    for group in groups():
        page = client.get(f"/docs/reference/{group.name}").content.decode()
        assert all(f'id="{operation.id}"' in page for operation in group.operations)
    assert client.get("/docs/reference/nothing").status_code == 404


def test_search_engines_find_public_pages_alone(world: World) -> None:
    client = world.client(None)
    robots = client.get("/robots.txt").content.decode()
    assert "Disallow: /dashboard/" in robots and "Sitemap: http://localhost:8000/sitemap.xml" in robots
    site_map = client.get("/sitemap.xml").content.decode()
    assert "<loc>http://localhost:8000/models/ledgerline/transactions</loc>" in site_map
    assert "<loc>http://localhost:8000/docs/start-creator</loc>" in site_map and "dashboard" not in site_map
    world.model.visibility = "private"
    world.model.save()
    assert "ledgerline/transactions" not in client.get("/sitemap.xml").content.decode()
    assert client.get("/favicon.ico").status_code == 301
    assert client.get("/picture.png").content.startswith(b"\x89PNG")


def test_every_page_of_the_folder_is_on_the_site() -> None:
    assert {path.stem for path in folder().glob("*.md")} == set(shelf())
