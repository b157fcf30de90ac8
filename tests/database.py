"""The database roles of the tests: they act as the application's role, as the platform does.

The connection logs in as the administrator and acts as the application's role, so that the few tests that must (to
prove a trigger behind a right, to make the books wrong, to change the time of a row) can act as another one for a
moment, in the same transaction.
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.core.management.commands.flush import Command as FlushCommand
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from psycopg.pq import TransactionStatus

from marketplace.config.roles import OWNER, Login
from tests.tiers import SERVICES

TEMPLATE = "intarsia_template"


def log_in_as_the_administrator() -> None:
    """Let Django's connection create and drop the test database."""
    login = Login.of(settings.ENV.database_admin_url)
    connection.settings_dict.update(USER=login.user, PASSWORD=login.password)


def copy_one_template() -> None:
    """Let every worker's database be a copy of one that is migrated once: migrating takes 5 s of a core."""
    folder = Path(os.environ[SERVICES])
    with (folder / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "template.made").exists():
            _migrate(TEMPLATE)
            (folder / "template.made").touch()
    connection.settings_dict["TEST"].update(TEMPLATE=TEMPLATE, MIGRATE=False)


def _migrate(name: str) -> None:
    before = connection.settings_dict["NAME"]
    with connection._nodb_cursor() as cursor:  # as Django makes test databases
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')
        cursor.execute(f'CREATE DATABASE "{name}"')
    connection.close()
    connection.settings_dict["NAME"] = name
    try:
        call_command("migrate", verbosity=0, interactive=False)
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before


@contextmanager
def act_as_the_application() -> Iterator[None]:
    """Let every connection of the tests start as the application's role; the administrator empties tables."""
    options = connection.settings_dict["OPTIONS"]

    def flush(command: FlushCommand, **choices: Any) -> None:
        empty_tables()

    connection.close()
    options["options"] = f"-c role={application()}"
    with mock.patch.object(FlushCommand, "handle", flush):
        yield
    connection.close()
    del options["options"]


def renew_connection() -> None:
    """Close a connection that another test left lost, or in another role: the next statement opens a new one."""
    raw = connection.connection
    if raw is None or connection.in_atomic_block:
        return
    try:
        (role,) = raw.execute("SHOW role").fetchone()
    except psycopg.Error:
        role = "none: the connection is lost"
    if role != application():
        warnings.warn(f"a test before this one left the role {role}", stacklevel=2)
        connection.close()


# Made by `migrate` and the same for every test.
KEPT = ("django_content_type", "auth_permission")
# A table that a test wrote to has pages, even where the writing was rolled back. A table of partitions has none itself.
_WRITTEN = """
SELECT coalesce(pg_partition_root(oid), oid)::regclass::text, max(pg_relation_size(oid)) FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0 GROUP BY 1 ORDER BY 1
"""
_RESTART = """
SELECT setval(d.objid::regclass, s.seqstart, false) FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
WHERE d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i') AND d.refobjid = ANY(%s::regclass[])
"""
LARGE = 2**20  # bytes of a table that is truncated


def empty_tables(*, keep: Collection[str] = ()) -> None:
    """Empty the tables of the models that a test wrote to, but those named in `keep`, as the administrator.

    Django's own command truncates all of them, some two hundred, and writes content types and permissions anew: most of
    the time of a short test. Truncation makes new files for a table and each of its indexes; to delete a few rows takes
    a tenth of that. Triggers are off meanwhile: rows go in any order, also those that rules freeze.
    """
    ours = set(connection.introspection.django_table_names(only_existing=True, include_views=False))
    ours -= {*KEPT, *keep}
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute(_WRITTEN)
        written = {name: size for name, size in cursor.fetchall() if name in ours}
        if not written:
            return
        large = [] if keep else [name for name, size in written.items() if size >= LARGE]  # CASCADE spares none
        if large:
            cursor.execute(f"TRUNCATE {', '.join(large)} RESTART IDENTITY CASCADE")
        deletions = [f"DELETE FROM {name}" for name in written if name not in large]
        frame = ["SET session_replication_role = replica", *deletions, "SET session_replication_role = origin"]
        cursor.execute("; ".join(frame))
        cursor.execute(_RESTART, [list(written)])


def written_rows() -> dict[str, int]:
    """Count, by table, the rows that the open transaction has inserted, updated and deleted, also those taken back."""
    with connection.cursor() as cursor:
        cursor.execute(_COUNTED)
        return dict(cursor.fetchall())


_COUNTED = """
SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_xact_user_tables
WHERE n_tup_ins + n_tup_upd + n_tup_del > 0
"""


def application() -> str:
    """Return the name of the application's role."""
    return Login.of(settings.ENV.database_url).user


def as_owner() -> Any:
    """Act as the owner of the schema, whom triggers and constraints still bind."""
    return _acting_as(OWNER)


def as_superuser() -> Any:
    """Act as the administrator, who can turn triggers off."""
    return _acting_as("none")


@contextmanager
def behind_the_triggers() -> Iterator[CursorWrapper]:
    """Write as nothing in the product can: no trigger looks, and no foreign key."""
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield cursor
        cursor.execute("SET LOCAL session_replication_role = origin")


@contextmanager
def _acting_as(role: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('role')")
        (before,) = cursor.fetchone()
        cursor.execute(f"SET ROLE {role}")
    try:
        yield
    finally:
        # A failed transaction takes the change of role back by itself.
        if connection.connection.info.transaction_status != TransactionStatus.INERROR:
            with connection.cursor() as cursor:
                cursor.execute(f"SET ROLE {before}")
