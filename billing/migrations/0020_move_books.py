"""The books move into the tables of migration 0013: splits instead of basis points, lots, corrections, budget nodes.

There is no way back: partial corrections and several payees have no place in the old tables. `manage.py migrate` runs in
one database transaction; take a backup first, as always.
"""

from pathlib import Path

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Q

from billing.models.budgets import limits_are_not_negative

SQL = Path(__file__).with_name("sql")

ADD_TO_USAGE = """
ALTER TABLE billing_usage
    ADD COLUMN price_id bigint,
    ADD COLUMN latency_class varchar(12) NOT NULL DEFAULT 'standard',
    ADD COLUMN class_bps integer NOT NULL DEFAULT 10000,
    ADD COLUMN split_id bigint,
    ADD COLUMN allowance_nano_usd bigint NOT NULL DEFAULT 0,
    ADD COLUMN attempt smallint NOT NULL DEFAULT 1;
"""
END_OF_OLD_USAGE = """
ALTER TABLE billing_usage
    ALTER COLUMN split_id SET NOT NULL,
    DROP CONSTRAINT billing_usage_shares_make_cost,
    DROP COLUMN creator_bps, DROP COLUMN creator_nano_usd, DROP COLUMN platform_nano_usd;
"""
END_OF_OLD_TABLES = """
DROP TRIGGER billing_refund_reverses ON billing_refund;
DROP FUNCTION billing_check_refund();
"""

SETTLED = Q(
    state="settled",
    closed_at__isnull=False,
    cost_nano_usd__isnull=False,
    allowance_used_nano_usd__isnull=False,
    cost_nano_usd__gte=0,
    cost_nano_usd__lte=F("amount_nano_usd"),
    allowance_used_nano_usd__gte=0,
    allowance_used_nano_usd__lte=F("monthly_allowance_nano_usd") + F("introductory_allowance_nano_usd"),
)


def usage_state() -> list[migrations.operations.base.Operation]:
    """Return the changes of the usage table that Django knows of."""
    added: dict[str, models.Field] = {
        "price_id": models.BigIntegerField(null=True),
        "latency_class": models.CharField(db_default="standard", default="standard", max_length=12),
        "class_bps": models.PositiveIntegerField(db_default=10000, default=10000),
        "split_id": models.BigIntegerField(),
        "allowance_nano_usd": models.BigIntegerField(db_default=0, default=0),
        "attempt": models.SmallIntegerField(db_default=1, default=1),
    }
    return [
        *(
            migrations.AddField("usage", name, field, preserve_default=name != "split_id")
            for name, field in added.items()
        ),
        *(migrations.RemoveField("usage", name) for name in ("creator_bps", "creator_nano_usd", "platform_nano_usd")),
    ]


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_key_lines"),
        ("billing", "0019_movements_name_transactions"),
    ]

    operations = [
        # Transactions and entries
        migrations.RemoveConstraint("ledgertransaction", "billing_transaction_reversal_names_original"),
        migrations.RenameField("ledgertransaction", "reverses", "corrects"),
        migrations.AlterField(
            "ledgertransaction",
            "corrects",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="corrections",
                to="billing.ledgertransaction",
            ),
        ),
        migrations.AddConstraint(
            "ledgertransaction",
            models.CheckConstraint(
                condition=Q(kind__in=["reversal", "correction"], corrects__isnull=False)
                | (~Q(kind__in=["reversal", "correction"]) & Q(corrects__isnull=True)),
                name="billing_transaction_correction_names_original",
            ),
        ),
        migrations.AddField(
            "entry",
            "lot",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="entries", to="billing.lot"
            ),
        ),
        migrations.RemoveConstraint("entry", "billing_entry_unique_account"),
        migrations.AddConstraint(
            "entry",
            models.UniqueConstraint(
                fields=("transaction", "account", "lot"), nulls_distinct=False, name="billing_entry_unique_account"
            ),
        ),
        # Holds and usage
        migrations.AddField("hold", "price_id", models.BigIntegerField(null=True)),
        migrations.AddField(
            "hold", "latency_class", models.CharField(db_default="standard", default="standard", max_length=12)
        ),
        migrations.AddField("hold", "class_bps", models.PositiveIntegerField(db_default=10000, default=10000)),
        migrations.AddField("hold", "monthly_allowance_nano_usd", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddField("hold", "introductory_allowance_nano_usd", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddField("hold", "allowance_used_nano_usd", models.BigIntegerField(null=True)),
        migrations.AddField("hold", "split_id", models.BigIntegerField(null=True)),
        migrations.AddField(
            "hold",
            "budget_path",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.UUIDField(), db_default=[], default=list, size=None
            ),
        ),
        migrations.RunSQL(ADD_TO_USAGE),
        migrations.RunSQL((SQL / "0020_move.sql").read_text()),
        migrations.AlterField("hold", "split_id", models.BigIntegerField()),
        migrations.RemoveConstraint("hold", "billing_hold_creator_bps_range"),
        migrations.RemoveConstraint("hold", "billing_hold_state_fits"),
        migrations.AddConstraint(
            "hold",
            models.CheckConstraint(
                condition=Q(
                    class_bps__gte=0, monthly_allowance_nano_usd__gte=0, introductory_allowance_nano_usd__gte=0
                ),
                name="billing_hold_class_and_allowance_fit",
            ),
        ),
        migrations.AddConstraint(
            "hold",
            models.CheckConstraint(
                condition=Q(state="open", closed_at__isnull=True, cost_nano_usd__isnull=True)
                | Q(state="released", closed_at__isnull=False, cost_nano_usd__isnull=True)
                | SETTLED,
                name="billing_hold_state_fits",
            ),
        ),
        migrations.RemoveField("hold", "creator_bps"),
        migrations.RemoveField("hold", "creator_nano_usd"),
        migrations.RemoveField("hold", "counts_in_budget"),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(END_OF_OLD_USAGE)], state_operations=usage_state()
        ),
        migrations.AddConstraint(
            "budgetnode",
            models.CheckConstraint(condition=limits_are_not_negative(), name="billing_budget_limits_not_negative"),
        ),
        # Rules and functions
        migrations.RunSQL(END_OF_OLD_TABLES),
        migrations.RunSQL((SQL / "0020_ledger.sql").read_text()),
        migrations.RunSQL((SQL / "0020_place.sql").read_text()),
        migrations.RunSQL((SQL / "0020_settle.sql").read_text()),
        migrations.RunSQL((SQL / "0020_corrections.sql").read_text()),
        migrations.DeleteModel("Refund"),
        migrations.DeleteModel("KeyBudget"),
        migrations.RunSQL(
            "DROP FUNCTION billing_cost_nano_usd(bigint, bigint, bigint, bigint, bigint, bigint, bigint)"
        ),
    ]
