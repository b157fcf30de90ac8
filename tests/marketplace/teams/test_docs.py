"""docs/organizations.md: its examples run as they stand, and its roles are the platform's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from marketplace.accounts.models import Organization
from marketplace.accounts.policies import SCOPES_OF_ROLE
from tests.marketplace.catalog.factories import make_key

PAGE = (Path(__file__).parents[3] / "docs" / "organizations.md").read_text()


@pytest.mark.django_db(transaction=True)
def test_the_examples_run_against_a_server(live_server, acme: Organization, capsys) -> None:
    names: dict[str, Any] = {"BASE_URL": live_server.url, "API_KEY": make_key(acme, "account")[1]}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/organizations.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "owner False" in printed and "organization.created" in printed


def test_the_table_of_roles_is_the_platforms() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (`[^|]+`) \|", PAGE, re.MULTILINE))
    assert {role: set(re.findall(r"`(\w+)`", scopes)) for role, scopes in rows.items()} == {
        str(role): set(scopes) for role, scopes in SCOPES_OF_ROLE.items()
    }
