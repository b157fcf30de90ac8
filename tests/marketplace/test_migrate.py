"""`manage.py migrate` as production runs it: in a process of its own, on an empty database, checks included."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.conf import settings

from devstack.state import REPOSITORY
from marketplace.config.grants import TABLES
from marketplace.config.roles import OWNER


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
import django
from django.core.management import call_command
from marketplace.config import extensions

extensions.OPTIONAL = ("nowhere",)  # as on a server that does not have it
django.setup()
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


def test_a_server_without_pgvector_is_migrated_and_searched_and_gets_vectors_once_it_has_it(
    empty: dict[str, str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PGVECTOR], env=empty, cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    with psycopg.connect(empty["DATABASE_ADMIN_URL"]) as admin:
        found = admin.execute(
            "SELECT extname FROM pg_extension WHERE extnamespace = 'extensions'::regnamespace"
        ).fetchall()
    assert {name for (name,) in found} == {"pg_trgm", "unaccent", "vector"}


def test_a_server_without_trigrams_is_refused_by_name(empty: dict[str, str]) -> None:
    program = (
        "import django; from marketplace.config import extensions; extensions.NEEDED = ('nowhere',); django.setup()\n"
        "from django.core.management import call_command; call_command('migrate')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=empty, cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and "PostgreSQL has no extension nowhere" in done.stderr
