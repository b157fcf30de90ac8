"""PostgreSQL's extensions of the catalogue's search, in a schema of their own, apart from the platform's tables.

The administrator makes them, as the roles: pgvector is not trusted, so that the owner of the database may not. Search
works without pgvector, by words and spelling; a `migrate` after it was installed adds meaning.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from marketplace.config.roles import OWNER

SCHEMA = "extensions"
NEEDED = ("pg_trgm", "unaccent")
OPTIONAL = ("vector",)


class ExtensionMissing(Exception):
    """The server lacks an extension that the platform needs; the message names it."""


def prepare_extensions(admin: psycopg.Connection[Any], *, application: str) -> None:
    """Create the extensions that are missing, and let owner and application use them.

    `admin` is an autocommit connection of a superuser. Raises ExtensionMissing.
    """
    admin.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
    admin.execute(f"REVOKE ALL ON SCHEMA {SCHEMA} FROM PUBLIC".encode())
    admin.execute(
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}, {}").format(*map(sql.Identifier, (SCHEMA, OWNER, application)))
    )
    available = {name for (name,) in admin.execute("SELECT name FROM pg_available_extensions").fetchall()}
    found = dict(
        admin.execute(
            "SELECT extname, nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace"
        ).fetchall()
    )
    for name in (*NEEDED, *OPTIONAL):
        if found.get(name) == SCHEMA:
            continue
        if name in found:  # somebody made it elsewhere
            admin.execute(sql.SQL("ALTER EXTENSION {} SET SCHEMA {}").format(*map(sql.Identifier, (name, SCHEMA))))
        elif name in available:
            admin.execute(sql.SQL("CREATE EXTENSION {} SCHEMA {}").format(*map(sql.Identifier, (name, SCHEMA))))
        elif name in NEEDED:
            raise ExtensionMissing(f"PostgreSQL has no extension {name}: install its contrib package")
