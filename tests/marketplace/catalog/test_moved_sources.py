"""The migration to several sources keeps every declaration; a way back that would lose some of a blend is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from django.db import ProgrammingError, connection
from django.db.backends.utils import CursorWrapper
from django.db.migrations.executor import MigrationExecutor

from marketplace.config.roles import OWNER
from tests.database import as_owner, as_superuser

BEFORE, AFTER = ("catalog", "0004_derivation"), ("catalog", "0005_sources")
ABOVE, BELOW, OTHER = (uuid.UUID(int=number) for number in (1, 2, 3))


def migrate(target: tuple[str, str]) -> None:
    with as_owner():
        MigrationExecutor(connection).migrate([target])


@pytest.fixture
def cursor(transactional_db: None) -> Iterator[CursorWrapper]:
    """A database of its own with the schema before several sources; the tests' own comes back."""
    name = connection.settings_dict["NAME"]
    with as_superuser(), connection.cursor() as administrator:
        administrator.execute(f'CREATE DATABASE "{name}_sources" OWNER {OWNER}')
    connection.close()
    connection.settings_dict["NAME"] = f"{name}_sources"
    try:
        migrate(BEFORE)
        with as_superuser(), connection.cursor() as made:
            yield made
    finally:
        connection.close()
        connection.settings_dict["NAME"] = name
        with as_superuser(), connection.cursor() as administrator:
            administrator.execute(f'DROP DATABASE "{name}_sources" WITH (FORCE)')


def test_declarations_move_and_move_back(cursor: CursorWrapper) -> None:
    cursor.execute(
        "INSERT INTO accounts_organization (id, slug, name, created_at) VALUES (%s, 'o', 'O', now())", [OTHER]
    )
    cursor.execute(
        "INSERT INTO catalog_basemodel (id, name, fingerprint, config, context_length, created_at)"
        " VALUES (%s, 'b', 'f', '{}', 1, now())",
        [OTHER],
    )
    for model, derived_from, royalty in ((ABOVE, None, 0), (OTHER, None, 0), (BELOW, ABOVE, 1_250)):
        cursor.execute(
            "INSERT INTO catalog_model (id, organization_id, slug, kind, base_model_id, title, summary, card_markdown,"
            " industry, tags, visibility, example_messages, created_at, updated_at, derived_from_id, royalty_bps)"
            " VALUES (%s, %s, %s, 'adapter', %s, 't', '', '', '', '{}', 'public', '[]', now(), now(), %s, %s)",
            [model, OTHER, model.hex[-3:], OTHER, derived_from, royalty],
        )
    migrate(AFTER)
    cursor.execute("SELECT model_id, upstream_id, royalty_bps, place, count FROM catalog_source")
    assert cursor.fetchall() == [(BELOW, ABOVE, 1_250, 1, 1)]
    migrate(BEFORE)
    cursor.execute("SELECT id, royalty_bps FROM catalog_model WHERE derived_from_id = %s", [ABOVE])
    assert cursor.fetchall() == [(BELOW, 1_250)]
    migrate(AFTER)
    cursor.execute(
        "INSERT INTO catalog_source (model_id, upstream_id, royalty_bps, place, count)"
        " VALUES (%(of)s, %(one)s, 5, 1, 2), (%(of)s, %(two)s, 6, 2, 2)",
        {"of": OTHER, "one": ABOVE, "two": BELOW},
    )
    with pytest.raises(ProgrammingError, match="would lose"):
        migrate(BEFORE)
    cursor.execute("SELECT count(*) FROM catalog_source")
    assert cursor.fetchall() == [(3,)]
