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
