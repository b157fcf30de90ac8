"""The application's database role against the books: whoever holds its login can forge, change or erase nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from psycopg.conninfo import make_conninfo

from billing.integrity import find_discrepancies
from marketplace.config import grants
from marketplace.config.grants import RuleMissing, apply_grants
from marketplace.config.roles import OWNER, Login, RolesError, prepare_roles
from tests.database import application, as_owner, as_superuser

pytestmark = pytest.mark.django_db

OPEN_PROMOTION = "INSERT INTO billing_ledgertransaction (kind, reference) VALUES ('promotion', 'attack')"
ATTACK = "(SELECT id FROM billing_ledgertransaction WHERE reference = 'attack')"
DENIED = "permission denied"


def entry(account: str, amount: int, transaction_id: str = ATTACK) -> str:
    return (
        "INSERT INTO billing_entry (transaction_id, account_id, amount, lot_id) VALUES "
        f"({transaction_id}, {account}, {amount}, (SELECT max(id) FROM billing_lot WHERE account_id = {account}))"
    )


BALANCED = (
    "INSERT INTO billing_entry (transaction_id, account_id, amount, lot_id) SELECT t.id, account, amount, "
    "(SELECT max(l.id) FROM billing_lot l WHERE l.account_id = account) "
    "FROM billing_ledgertransaction t, (VALUES ({customer}, 500), ({promotion}, -500)) AS line (account, amount) "
    "WHERE reference = 'attack'"
)

# In the order: name, the refusal's words, the statements. {names} are ids of accounts and transactions.
ATTEMPTS: dict[str, tuple[str, ...]] = {
    "third entry after an early check": (
        "sum to 777",
        OPEN_PROMOTION,
        BALANCED,
        "SET CONSTRAINTS ALL IMMEDIATE",
        entry("{creator}", 777),
    ),
    "one-sided transaction": ("sum to 500", OPEN_PROMOTION, entry("{customer}", 500)),
    "transaction without entries": ("0 entries", OPEN_PROMOTION, "SET CONSTRAINTS ALL IMMEDIATE"),
    "charge of an invented prediction": (
        "names no settled prediction",
        "INSERT INTO billing_ledgertransaction (kind, reference) VALUES ('prediction', 'attack')",
        BALANCED,
    ),
    "reversal of a charge that is no correction": (
        "is not one of its corrections|does not undo",
        "INSERT INTO billing_ledgertransaction (kind, reference, corrects_id) "
        "VALUES ('correction', 'attack', {transaction})",
        "INSERT INTO billing_entry (transaction_id, account_id, lot_id, amount) "
        "SELECT t.id, e.account_id, e.lot_id, -e.amount FROM billing_ledgertransaction t, billing_entry e "
        "WHERE t.reference = 'attack' AND e.transaction_id = {transaction}",
    ),
    "hold settled by hand": (DENIED, "UPDATE billing_hold SET state = 'settled', cost_nano_usd = 0"),
    "hold released by hand": (DENIED, "UPDATE billing_hold SET state = 'released', closed_at = now()"),
    "hold made cheaper": (DENIED, "UPDATE billing_hold SET amount_nano_usd = 0"),
    "verdict by hand": (DENIED, "UPDATE billing_hold SET delivered_tokens = 0, verdict_at = now()"),
    "hold by hand": (DENIED, "INSERT INTO billing_hold SELECT * FROM billing_hold WHERE state = 'open'"),
    "hold deleted": (DENIED, "DELETE FROM billing_hold"),
    "hold truncated": (DENIED, "TRUNCATE billing_hold CASCADE"),
    "hold locked": (DENIED, "SELECT 1 FROM billing_hold FOR UPDATE"),
    "invented usage": (DENIED, "INSERT INTO billing_usage SELECT * FROM billing_usage"),
    "usage changed": (DENIED, "UPDATE billing_usage SET cost_nano_usd = 0"),
    "usage deleted": (DENIED, "DELETE FROM billing_usage"),
    "usage truncated": (DENIED, "TRUNCATE billing_usage"),
    "partition of usage read": (DENIED, "SELECT * FROM billing_usage_default"),
    "partition of usage written": (DENIED, "INSERT INTO billing_usage_default SELECT * FROM billing_usage"),
    "partition of usage truncated": (DENIED, "TRUNCATE billing_usage_default"),
    "partition of usage dropped": ("must be owner", "DROP TABLE billing_usage_default"),
    "partition of usage detached": (
        "must be owner",
        "ALTER TABLE billing_usage DETACH PARTITION billing_usage_default",
    ),
    "entry changed": (DENIED, "UPDATE billing_entry SET amount = amount + 1"),
    "entry deleted": (DENIED, "DELETE FROM billing_entry"),
    "entry truncated": (DENIED, "TRUNCATE billing_entry"),
    "transaction changed": (DENIED, "UPDATE billing_ledgertransaction SET memo = 'x'"),
    "transaction deleted": (DENIED, "DELETE FROM billing_ledgertransaction"),
    "transaction truncated": (DENIED, "TRUNCATE billing_ledgertransaction CASCADE"),
    "balance by hand": (DENIED, "UPDATE billing_account SET posted = posted + 1"),
    "rich account": ("starts empty", "INSERT INTO billing_account (kind, posted) VALUES ('stripe_fees', 5)"),
    "rest of a lot by hand": (DENIED, "UPDATE billing_lot SET remaining = remaining + 1"),
    "rich lot": (
        "starts empty",
        "INSERT INTO billing_lot (account_id, kind, opening, transaction_id) "
        "VALUES ({customer}, 'paid', 5, {transaction})",
    ),
    "allowance by hand": (DENIED, "UPDATE billing_allowance SET used_nano_usd = 0"),
    "split by hand": (DENIED, "UPDATE billing_splitpart SET basis_points = 10000"),
    "kind of account by hand": (DENIED, "UPDATE billing_accountkind SET may_be_negative = true"),
    "account deleted": (DENIED, "DELETE FROM billing_account"),
    "account truncated": (DENIED, "TRUNCATE billing_account CASCADE"),
    "budget spent by hand": (DENIED, "UPDATE billing_budgetnode SET spent_total_nano_usd = 0"),
    "budget freed by hand": (DENIED, "UPDATE billing_budgetnode SET held_nano_usd = 0"),
    "correction by hand": (
        DENIED,
        "INSERT INTO billing_correction (id, prediction_id, amount_nano_usd, reason) "
        "SELECT id, id, 0, 'x' FROM billing_hold WHERE state = 'settled'",
    ),
    "correction deleted": (DENIED, "DELETE FROM billing_correction"),
    "gateway's sign of life by hand": (DENIED, "UPDATE billing_gateway SET last_seen_at = now()"),
    "message rewritten": (DENIED, "UPDATE billing_outbox SET payload = '{{}}'"),
    "top-up deleted": (DENIED, "DELETE FROM billing_topup"),
    "refund deleted": (DENIED, "DELETE FROM billing_topuprefund"),
    "dispute deleted": (DENIED, "DELETE FROM billing_dispute"),
    "incident deleted": (DENIED, "DELETE FROM billing_incident"),
    "triggers disabled": ("must be owner", "ALTER TABLE billing_entry DISABLE TRIGGER USER"),
    "triggers disabled for a session": (DENIED, "SET session_replication_role = replica"),
    "trigger dropped": ("must be owner", "DROP TRIGGER billing_entry_append_only ON billing_entry"),
    "trigger added": (
        DENIED,
        "CREATE TRIGGER mine BEFORE INSERT ON billing_entry FOR EACH ROW EXECUTE FUNCTION billing_refuse_change()",
    ),
    "constraint dropped": (
        "must be owner",
        "ALTER TABLE billing_account DROP CONSTRAINT billing_account_never_overdrawn",
    ),
    "function replaced": (
        DENIED,
        "CREATE OR REPLACE FUNCTION billing_release_hold(p_id uuid, p_reason text) RETURNS boolean LANGUAGE sql "
        "AS 'SELECT true'",
    ),
    "function without its owner's rights": (
        "must be owner",
        "ALTER FUNCTION billing_release_hold(uuid, text) SECURITY INVOKER",
    ),
    "internal function": (DENIED, "SELECT billing_spend_in_budgets('[]')"),
    "partition unprotected": (DENIED, "SELECT billing_protect_partition('billing_account')"),
    "table in the schema": (DENIED, "CREATE TABLE mine (id int)"),
    "schema of its own": (DENIED, "CREATE SCHEMA mine"),
    "temporary table in the way": (DENIED, "CREATE TEMP TABLE billing_refund (prediction_id uuid)"),
    "right given on": (DENIED, "GRANT UPDATE ON billing_hold TO PUBLIC", "UPDATE billing_hold SET amount_nano_usd = 0"),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_the_application_cannot(attempt: str, books: dict[str, int]) -> None:
    words, *statements = ATTEMPTS[attempt]
    with pytest.raises(DatabaseError, match=words), transaction.atomic(), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.format(**books))
    assert find_discrepancies() == []


@pytest.fixture
def login() -> Iterator[psycopg.Connection[Any]]:
    """The application's own login to the test database, as a thief of DATABASE_URL has it."""
    own = Login.of(settings.ENV.database_url)
    where = {name: connection.get_connection_params()[name] for name in ("dbname", "host", "port")}
    with psycopg.connect(make_conninfo(**where, user=own.user, password=own.password), autocommit=True) as session:
        yield session


@pytest.mark.parametrize(
    "statement",
    [
        f"SET ROLE {OWNER}",
        "SET ROLE intarsia",
        "SET SESSION AUTHORIZATION intarsia",
        "ALTER ROLE CURRENT_USER SUPERUSER",
        "ALTER ROLE CURRENT_USER CREATEDB",
        "CREATE ROLE mine",
        f"GRANT {OWNER} TO CURRENT_USER",
        "CREATE DATABASE mine",
        "CREATE EXTENSION dblink",
        "COPY billing_entry TO PROGRAM 'cat'",
        "COPY billing_entry (transaction_id, account_id, amount) FROM '/etc/passwd'",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT rolpassword FROM pg_authid",
        "ALTER SYSTEM SET fsync = off",
        "REASSIGN OWNED BY CURRENT_USER TO intarsia",
        f"DROP OWNED BY {OWNER}",
    ],
)
def test_the_application_cannot_become_more_than_it_is(login: psycopg.Connection[Any], statement: str) -> None:
    with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidGrantOperation)):
        login.execute(statement)


def test_the_application_has_no_power_and_owns_nothing(login: psycopg.Connection[Any]) -> None:
    powers = login.execute(
        "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls FROM pg_roles "
        "WHERE rolname = current_user"
    ).fetchone()
    assert login.info.user == application() and powers == (False,) * 5
    owned = login.execute(
        "SELECT count(*) FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND deptype = 'o' "
        "AND refobjid = current_user::regrole"
    ).fetchone()
    member = login.execute("SELECT count(*) FROM pg_auth_members WHERE member = current_user::regrole").fetchone()
    assert owned == member == (0,)
    owners = login.execute(
        "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'public'::regnamespace "
        "UNION SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    ).fetchall()
    assert owners == [(OWNER,)]
    assert login.execute("SELECT rolsuper, rolcanlogin FROM pg_roles WHERE rolname = %s", [OWNER]).fetchone() == (
        False,
        False,
    )


def test_functions_with_their_owners_rights_look_names_up_in_a_fixed_path(login: psycopg.Connection[Any]) -> None:
    rows = login.execute(
        "SELECT proname, prosecdef, proconfig FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    ).fetchall()
    assert len(rows) > 20
    assert [row for row in rows if row[1:] != (True, [f"search_path={grants.SEARCH_PATH}"])] == []


def test_rules_name_only_tables_and_functions_that_exist(login: psycopg.Connection[Any]) -> None:
    tables = login.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace").fetchall()
    functions = login.execute("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace").fetchall()
    assert set(grants.TABLES) <= {name for (name,) in tables}
    assert {name for (name,) in functions} >= grants.CALLED | grants.INTERNAL


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE TABLE billing_novelty (id int)", "billing_novelty"),
        ("CREATE VIEW billing_window AS SELECT 1 AS one", "billing_window"),
        ("CREATE FUNCTION billing_mint(p int) RETURNS int LANGUAGE sql AS 'SELECT 1'", "billing_mint(integer)"),
    ],
    ids=["table", "view", "function"],
)
def test_what_has_no_rule_stops_the_migration_by_name(statement: str, named: str) -> None:
    with as_owner():
        with connection.cursor() as cursor:
            cursor.execute(statement)
        with pytest.raises(RuleMissing, match=re.escape(named)):
            apply_grants(connection, application=application())


def test_a_right_that_no_rule_gives_is_taken_away_by_the_next_migration(books: dict[str, int]) -> None:
    with as_owner(), connection.cursor() as cursor:
        cursor.execute(f"GRANT UPDATE ON billing_hold TO PUBLIC, {application()}")
        cursor.execute("ALTER FUNCTION billing_release_hold(uuid, text) SECURITY INVOKER RESET search_path")
        apply_grants(connection, application=application())
    with pytest.raises(DatabaseError, match=DENIED), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE billing_hold SET expires_at = now()")
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_release_hold(id, 'test') FROM billing_hold WHERE state = 'open'")
        assert cursor.fetchall() == [(True,)]


def test_a_role_with_too_much_power_or_a_membership_loses_it_and_objects_of_others_get_their_owner() -> None:
    role = f"{connection.settings_dict['NAME']}_app"  # of this test database alone, so that no other worker sees it
    with as_superuser():
        admin = connection.connection
        admin.execute(f"CREATE ROLE {role} LOGIN CREATEDB CREATEROLE")
        admin.execute(f"GRANT {OWNER} TO {role}")
        admin.execute("CREATE TABLE stray (id bigserial)")
        admin.execute("CREATE FUNCTION stray() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        prepare_roles(admin, application=Login(role, "secret"))
        found = admin.execute(
            "SELECT rolcreatedb, rolcreaterole, (SELECT count(*) FROM pg_auth_members WHERE member = r.oid), "
            "(SELECT relowner::regrole::text FROM pg_class WHERE oid = 'stray'::regclass), "
            "(SELECT relowner::regrole::text FROM pg_class WHERE oid = 'stray_id_seq'::regclass), "
            "(SELECT proowner::regrole::text FROM pg_proc WHERE oid = 'stray()'::regprocedure) "
            "FROM pg_roles r WHERE rolname = %s",
            [role],
        ).fetchone()
        assert found == (False, False, 0, OWNER, OWNER, OWNER)
        with pytest.raises(RolesError, match="role of its own"):
            prepare_roles(admin, application=Login(admin.info.user, "x"))


def test_migrate_without_the_administrators_login_stops_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "ENV", replace(settings.ENV, database_admin_url=""))
    with pytest.raises(CommandError, match="DATABASE_ADMIN_URL"):
        call_command("migrate")
