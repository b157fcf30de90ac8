"""The database's roles. The owner owns every object and cannot log in; the application logs in and owns nothing.

An administrator (`DATABASE_ADMIN_URL`, known to `migrate` alone) creates both, and acts as the owner to change the
schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

OWNER = "intarsia_owner"
_POWERS: LiteralString = "NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"
_HAS_POWERS = "rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls"

# Objects that an administrator made before there was an owner.
_TAKE_OVER = """
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format('ALTER %s %s OWNER TO {owner}', CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW'
            ELSE 'TABLE' END, oid::regclass)
        FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'S')
            AND relowner <> '{owner}'::regrole
            AND NOT EXISTS (SELECT 1 FROM pg_depend  -- a column's sequence and an extension's table follow their owner
                WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype IN ('a', 'i', 'e'))
        UNION ALL
        SELECT format('ALTER ROUTINE %s OWNER TO {owner}', oid::regprocedure)
        FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proowner <> '{owner}'::regrole
            AND NOT EXISTS (SELECT 1 FROM pg_depend
                WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid AND deptype = 'e')
    LOOP
        EXECUTE statement;
    END LOOP;
END $$
"""


class RolesError(Exception):
    """The roles cannot be as they must; the message says what to do."""


@dataclass(frozen=True)
class Login:
    """User and password of a database URL."""

    user: str
    password: str

    @classmethod
    def of(cls, url: str) -> Login:
        """Read them from a `postgresql://` URL."""
        parts = urlsplit(url)
        return cls(unquote(parts.username or ""), unquote(parts.password or ""))


def prepare_roles(admin: psycopg.Connection[Any], *, application: Login) -> None:
    """Create owner and application role, or make them as they must be; hand database and schema to the owner.

    `admin` is an autocommit connection of a superuser to the platform's database. Raises RolesError when the
    application would log in as the administrator or as the owner.
    """
    if application.user in ("", admin.info.user, OWNER):
        raise RolesError(f"DATABASE_URL must log in as a role of its own, not as {application.user or 'nobody'!r}")
    _make(admin, OWNER, "NOLOGIN")
    _make(admin, application.user, "LOGIN", password=application.password)
    for (role,) in admin.execute(
        "SELECT roleid::regrole::text FROM pg_auth_members WHERE member = %s::regrole", [application.user]
    ).fetchall():
        admin.execute(sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(role), sql.Identifier(application.user)))
    names = {
        "database": sql.Identifier(admin.info.dbname),
        "owner": sql.Identifier(OWNER),
        "application": sql.Identifier(application.user),
    }
    for statement in (
        "ALTER DATABASE {database} OWNER TO {owner}",
        "ALTER SCHEMA public OWNER TO {owner}",
        "REVOKE ALL ON DATABASE {database} FROM PUBLIC, {application}",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC, {application}",
        "GRANT CONNECT ON DATABASE {database} TO {application}",
        "GRANT USAGE ON SCHEMA public TO {application}",
    ):
        admin.execute(sql.SQL(statement).format(**names))
    admin.execute(_TAKE_OVER.format(owner=OWNER).encode())


def _make(admin: psycopg.Connection[Any], role: str, login: LiteralString, password: str | None = None) -> None:
    name = sql.Identifier(role)
    found = admin.execute(
        f"SELECT ({_HAS_POWERS}) OR rolcanlogin <> %s FROM pg_roles WHERE rolname = %s", [login == "LOGIN", role]
    ).fetchone()
    with_password: sql.Composable = sql.SQL("")
    if password is not None:
        # Hashed here, so that the password is in no log of statements.
        secret = admin.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
        with_password = sql.SQL(" PASSWORD {}").format(sql.Literal(secret))
    if found is None:
        try:
            admin.execute(sql.SQL(f"CREATE ROLE {{}} {login} {_POWERS}{{}}").format(name, with_password))
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            return  # another `migrate`, of another database of this server, was faster
    elif found[0] or (password is not None and not _can_log_in(admin, role, password)):
        admin.execute(sql.SQL(f"ALTER ROLE {{}} {login} {_POWERS}{{}}").format(name, with_password))


def _can_log_in(admin: psycopg.Connection[Any], user: str, password: str) -> bool:
    """Return whether this password is the role's: setting it again would only disturb other migrations."""
    parameters = admin.info.get_parameters() | {"user": user, "password": password}
    try:
        psycopg.connect(make_conninfo(**parameters)).close()
    except psycopg.OperationalError:
        return False
    return True
