"""docs/ledger.md says what the code does: its examples run, and the rules it names exist."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ledger.md"


@pytest.mark.django_db
def test_the_examples_on_the_page_run() -> None:
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted >= 10 and results.failed == 0


@pytest.mark.django_db
def test_every_rule_that_the_page_names_exists_in_the_database() -> None:
    named = set(
        re.findall(
            r"`(billing_(?:transaction|entry|account|hold|usage|correction|lot|split)_[a-z_]+)`", PAGE.read_text()
        )
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname FROM pg_constraint UNION SELECT tgname FROM pg_trigger "
            "UNION SELECT indexname FROM pg_indexes"
        )
        existing = {name for (name,) in cursor.fetchall()}
    assert len(named) >= 8 and named <= existing


def test_billing_starts_without_the_stripe_package() -> None:
    code = (
        "import django, sys; django.setup(); import billing.views, billing.hotpath, billing.services;"
        "print(sorted({'stripe', 'requests', 'torch'} & set(sys.modules)))"
    )
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "marketplace.config.settings"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert result.stdout.strip() == "[]", result.stderr
