"""Placing and settling with fewer statements, guards that are asked less often, and no index that nobody reads.

Back again, the functions are those of migrations 0020 and 0014, whose files have them.
"""

import re
from pathlib import Path

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

SQL = Path(__file__).with_name("sql")

# Balances and lots change with each prediction: a page with room takes the new row, and no index learns of it.
ROOM = "ALTER TABLE billing_account SET (fillfactor = 50); ALTER TABLE billing_lot SET (fillfactor = 50);"
NO_ROOM = "ALTER TABLE billing_account RESET (fillfactor); ALTER TABLE billing_lot RESET (fillfactor);"

OLD_TRIGGERS = """
DROP TRIGGER billing_account_guard ON billing_account;
DROP TRIGGER billing_account_guard_balance ON billing_account;
CREATE TRIGGER billing_account_guard BEFORE INSERT OR UPDATE ON billing_account
    FOR EACH ROW EXECUTE FUNCTION billing_guard_account();
DROP TRIGGER billing_lot_guard ON billing_lot;
DROP TRIGGER billing_lot_guard_rest ON billing_lot;
CREATE TRIGGER billing_lot_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_lot
    FOR EACH ROW EXECUTE FUNCTION billing_guard_lot();
DROP TRIGGER billing_hold_guard ON billing_hold;
DROP TRIGGER billing_hold_guard_closed ON billing_hold;
CREATE TRIGGER billing_hold_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_hold
    FOR EACH ROW EXECUTE FUNCTION billing_guard_hold();
"""
OLD_CHECK = """
CREATE OR REPLACE FUNCTION billing_check_settled_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM billing_usage WHERE prediction_id = NEW.id AND created_at = NEW.closed_at) THEN
        RAISE EXCEPTION 'hold % is settled without usage', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_hold_settled_has_usage';
    END IF;
    IF NEW.cost_nano_usd > 0 AND NOT EXISTS (
        SELECT 1 FROM billing_ledgertransaction WHERE kind = 'prediction' AND reference = NEW.id::text
    ) THEN
        RAISE EXCEPTION 'hold % is settled without entries', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_hold_settled_has_entries';
    END IF;
    RETURN NULL;
END $$;
"""


def new(name: str) -> str:
    """Return the SQL of one of this migration's files."""
    return (SQL / f"0025_{name}.sql").read_text()


def old_functions() -> str:
    """Return the earlier text of every function that this migration replaces."""
    files = ("0014_gross", "0020_ledger", "0020_place", "0020_settle", "0020_corrections")
    earlier = "\n".join((SQL / f"{file}.sql").read_text() for file in files)
    found = []
    for name in re.findall(r"CREATE OR REPLACE FUNCTION (\w+)", new("rules") + new("settle") + new("place")):
        text = re.search(rf"CREATE (?:OR REPLACE )?FUNCTION {name}\(.*?\n(?:END )?\$\$;\n", earlier, re.DOTALL)
        if text is not None:
            found.append(re.sub(r"^CREATE (OR REPLACE )?", "CREATE OR REPLACE ", text[0]))
    return "\n".join(found)


class Migration(migrations.Migration):
    dependencies = [("billing", "0024_retention")]

    operations = [
        migrations.RunSQL(ROOM, NO_ROOM),
        # The unique constraints (organization, kind) and (transaction, account, lot) begin with these columns; nobody
        # looks for entries by lot, or for holds by account alone.
        migrations.AlterField(
            "account",
            "organization",
            models.ForeignKey(
                "accounts.organization",
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="ledger_accounts",
            ),
        ),
        migrations.AlterField(
            "entry",
            "transaction",
            models.ForeignKey(
                "billing.ledgertransaction",
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="entries",
            ),
        ),
        migrations.AlterField(
            "entry",
            "lot",
            models.ForeignKey(
                "billing.lot",
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="entries",
            ),
        ),
        migrations.AlterField(
            "hold",
            "account",
            models.ForeignKey(
                "billing.account",
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="holds",
            ),
        ),
        migrations.AlterField(
            "ledgertransaction",
            "corrects",
            models.ForeignKey(
                "billing.ledgertransaction",
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="corrections",
            ),
        ),
        migrations.AddIndex(
            "ledgertransaction",
            models.Index(fields=["corrects"], condition=Q(corrects__isnull=False), name="billing_transaction_corrects"),
        ),
        migrations.RemoveIndex("outbox", "billing_outbox_delivered"),
        migrations.AddIndex(
            "outbox",
            models.Index(
                fields=["delivered_at"], condition=Q(delivered_at__isnull=False), name="billing_outbox_delivered"
            ),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, OLD_CHECK),
        migrations.RunSQL(new("place") + new("settle"), old_functions()),
        migrations.RunSQL(new("rules"), OLD_TRIGGERS),
    ]
