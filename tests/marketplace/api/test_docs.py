"""docs/api.md: its Python examples run as they stand, and its table names every operation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from marketplace.api.urls import urlpatterns
from marketplace.catalog.models import Version
from marketplace.publishing import services as publishing
from marketplace.vault import services as vault_services
from tests.marketplace.catalog.factories import make_base, make_key, make_organization, write_adapter

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()


@pytest.mark.django_db(transaction=True)
def test_the_examples_run_against_a_server(live_server, tmp_path, monkeypatch) -> None:
    def verified_at_once(version_id: str) -> None:
        # The worker and a replica do this; their own tests cover how.
        publishing.record_verification(version=Version.objects.get(pk=version_id), ok=True, report={"rank": 8})

    pushed: list[str] = []
    monkeypatch.setattr("marketplace.publishing.verification.verify_version.delay", verified_at_once)
    monkeypatch.setattr("marketplace.vault.tasks.push_revocation.delay", pushed.append)
    vault_services.bootstrap_platform_keys()
    make_base()
    organization = make_organization("acme")
    key = make_key(organization, "publish", "account")[1]
    adapter = write_adapter(tmp_path / "adapter", size=3 * 2**20)
    names: dict[str, Any] = {"BASE_URL": live_server.url, "API_KEY": key, "ADAPTER": str(adapter)}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 12
    for block in blocks:
        exec(compile(block, "docs/api.md", "exec"), names)
    version = Version.objects.get()
    assert (version.state, version.package_size > 8 * 2**20) == ("revoked", True)
    assert pushed == [str(version.id)] * 2


def test_the_table_names_every_operation() -> None:
    table = PAGE[PAGE.index("## Every operation") :]
    for pattern in urlpatterns:
        if pattern.name:
            last = str(pattern.pattern).rsplit(">/", 1)[-1].split("<")[0].strip("/")
            assert last in table, f"{pattern.name} is missing in docs/api.md"
