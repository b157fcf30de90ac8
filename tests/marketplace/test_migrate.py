"""`manage.py migrate` as production runs it: in a process of its own, on an empty database, checks included."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.conf import settings

from devstack.state import REPOSITORY
from marketplace.config.grants import TABLES
from marketplace.config.roles import OWNER
from tests.database import TEMPLATE


@pytest.fixture
def empty() -> Iterator[dict[str, str]]:
    """The environment of `migrate` for a new database whose application role does not exist yet."""
    name = f"empty_{uuid.uuid4().hex[:12]}"
    admin = urlsplit(settings.ENV.database_admin_url)
    address = f"{admin.hostname}:{admin.port}"
    maintenance = urlunsplit(admin._replace(path="/postgres"))
    with psycopg.connect(maintenance, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
    yield os.environ | {
        "DJANGO_SETTINGS_MODULE": "marketplace.config.settings",
        "DATABASE_URL": f"postgresql://{name}:secret@{address}/{name}",
        "DATABASE_ADMIN_URL": urlunsplit(admin._replace(path=f"/{name}")),
    }
    with psycopg.connect(maintenance, autocommit=True) as server:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        server.execute(f"DROP ROLE IF EXISTS {name}".encode())


def manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


@pytest.mark.deep
def test_an_empty_database_is_migrated_checks_included_and_migrating_again_changes_nothing(
    empty: dict[str, str],
) -> None:
    done = manage(empty, "migrate", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Applying billing.0001_initial... OK" in done.stdout
    with psycopg.connect(empty["DATABASE_URL"]) as login:  # the role that did not exist logs in now
        tables = login.execute(
            "SELECT relname, relowner::regrole::text FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "AND relkind IN ('r', 'p') AND NOT relispartition"
        ).fetchall()
        assert dict(tables) == dict.fromkeys(TABLES, OWNER)
        assert login.execute("SELECT count(*) FROM billing_entry").fetchone() == (0,)
    again = manage(empty, "migrate", "--noinput")
    assert (again.returncode, again.stderr) == (0, "")
    assert "No migrations to apply" in again.stdout
    done = manage(empty, "check", "--database", "default")  # what other commands' checks see, as the application
    assert done.returncode == 0, done.stderr


WITHOUT_PGVECTOR = """
from contextlib import nullcontext
import django
from django.core.management import call_command
from marketplace.config import extensions

extensions.OPTIONAL = ("nowhere",)  # as on a server that does not have it
django.setup()
from marketplace.config.management.commands import migrate

migrate.rendering_less = nullcontext  # as Django does it
call_command("migrate", verbosity=0)
from marketplace.catalog.search import find, vectors
from marketplace.catalog.search.status import status
from marketplace.catalog.tasks import embed_new_listings

assert find("patient triaje") == [] and not vectors.has_vectors() and embed_new_listings() == 0
assert "pgvector" in status().why_not
extensions.OPTIONAL = ("vector",)  # it was installed
call_command("migrate", verbosity=0)
vectors.forget_answer()
assert vectors.has_vectors()
"""


SCHEMA = (
    "SELECT table_name, column_name, ordinal_position, udt_name, character_maximum_length, is_nullable, column_default "
    "FROM information_schema.columns WHERE table_schema = 'public'",
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'public'::regnamespace",
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
)


def schema_of(address: str) -> set[tuple[Any, ...]]:
    with psycopg.connect(address) as admin:
        return {(part, *row) for part, query in enumerate(SCHEMA) for row in admin.execute(query.encode()).fetchall()}


@pytest.mark.deep
def test_a_server_without_pgvector_is_migrated_and_searched_and_gets_vectors_once_it_has_it(
    empty: dict[str, str], django_db_setup: None
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PGVECTOR], env=empty, cwd=REPOSITORY, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    with psycopg.connect(empty["DATABASE_ADMIN_URL"]) as admin:
        found = admin.execute(
            "SELECT extname FROM pg_extension WHERE extnamespace = 'extensions'::regnamespace"
        ).fetchall()
    assert {name for (name,) in found} == {"pg_trgm", "unaccent", "vector"}
    ours = urlunsplit(urlsplit(settings.ENV.database_admin_url)._replace(path=f"/{TEMPLATE}"))
    assert schema_of(ours) == schema_of(empty["DATABASE_ADMIN_URL"]), "rendering less makes the same schema"


def test_a_server_without_trigrams_is_refused_by_name(empty: dict[str, str]) -> None:
    program = (
        "import django; from marketplace.config import extensions; extensions.NEEDED = ('nowhere',); django.setup()\n"
        "from django.core.management import call_command; call_command('migrate')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=empty, cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and "PostgreSQL has no extension nowhere" in done.stderr
