"""Locks on rows of the books, for the application's role, which may not change them (marketplace/config/grants.py)."""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).with_name("sql") / "0010_locks.sql"
DROP = "DROP FUNCTION billing_lock_account(bigint), billing_lock_transaction(bigint);"


class Migration(migrations.Migration):
    dependencies = [("billing", "0009_release_incidents")]
    operations = [migrations.RunSQL(SQL.read_text(), DROP)]
