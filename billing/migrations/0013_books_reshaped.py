"""Accounts by kinds that are data, splits, lots of credit, corrections, the budget tree and allowances: the tables.

The books of before move into them by migration 0014.
"""

import uuid
from pathlib import Path

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import billing.models.ledger

SQL = Path(__file__).with_name("sql") / "0013_chart_of_accounts.sql"
UNDO = Path(__file__).with_name("sql") / "0013_undo.sql"


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_key_lines"),
        ("billing", "0012_postings"),
    ]

    operations = [
        migrations.CreateModel(
            name="AccountKind",
            fields=[
                ("code", models.CharField(max_length=24, primary_key=True, serialize=False)),
                ("rank", models.SmallIntegerField(unique=True)),
                (
                    "owner",
                    models.CharField(
                        choices=[("organization", "Organization"), ("platform", "Platform")], max_length=12
                    ),
                ),
                ("may_be_negative", models.BooleanField()),
                ("family", models.CharField(max_length=24)),
                ("title", models.CharField(max_length=60)),
                ("meaning", models.TextField()),
            ],
            options={
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="Allowance",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "organization_id",
                        "model_id",
                        "kind",
                        "month",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("organization_id", models.UUIDField()),
                ("model_id", models.UUIDField()),
                (
                    "kind",
                    models.CharField(choices=[("monthly", "Monthly"), ("introductory", "Introductory")], max_length=12),
                ),
                ("month", models.DateField()),
                ("used_nano_usd", models.BigIntegerField(db_default=0, default=0)),
                ("held_nano_usd", models.BigIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="BudgetNode",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("organization", "Organization"),
                            ("team", "Team"),
                            ("key", "Key"),
                            ("end_user", "End User"),
                        ],
                        max_length=12,
                    ),
                ),
                ("name", models.CharField(blank=True, db_default="", default="", max_length=100)),
                ("end_user", models.CharField(max_length=64, null=True)),
                ("path", django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), size=None)),
                ("per_request_limit_nano_usd", models.BigIntegerField(null=True)),
                ("daily_limit_nano_usd", models.BigIntegerField(null=True)),
                ("monthly_limit_nano_usd", models.BigIntegerField(null=True)),
                ("total_limit_nano_usd", models.BigIntegerField(null=True)),
                ("end_user_per_request_limit_nano_usd", models.BigIntegerField(null=True)),
                ("end_user_daily_limit_nano_usd", models.BigIntegerField(null=True)),
                ("end_user_monthly_limit_nano_usd", models.BigIntegerField(null=True)),
                ("end_user_total_limit_nano_usd", models.BigIntegerField(null=True)),
                ("day", models.DateField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "month",
                    models.DateField(
                        db_default=models.Func(
                            models.Value("month"), django.db.models.functions.datetime.Now(), function="date_trunc"
                        )
                    ),
                ),
                ("spent_today_nano_usd", models.BigIntegerField(db_default=0, default=0)),
                ("spent_this_month_nano_usd", models.BigIntegerField(db_default=0, default=0)),
                ("spent_total_nano_usd", models.BigIntegerField(db_default=0, default=0)),
                ("held_nano_usd", models.BigIntegerField(db_default=0, default=0)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="Correction",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("amount_nano_usd", models.BigIntegerField()),
                ("reason", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="Lot",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=[("paid", "Paid"), ("promotional", "Promotional")], max_length=12)),
                ("remaining", models.BigIntegerField(db_default=0, default=0)),
                ("opening", models.BigIntegerField(db_default=0, default=0)),
                ("expires_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="Split",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("digest", models.BinaryField(max_length=32, unique=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "database_transaction",
                    models.BigIntegerField(db_default=billing.models.ledger.CurrentTransactionId()),
                ),
            ],
        ),
        migrations.CreateModel(
            name="SplitPart",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "split_id", "place", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "split",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="parts",
                        to="billing.split",
                    ),
                ),
                ("place", models.SmallIntegerField()),
                ("organization_id", models.UUIDField(null=True)),
                ("basis_points", models.IntegerField()),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("creator", "Creator"),
                            ("upstream", "Upstream"),
                            ("blend", "Blend"),
                            ("referral", "Referral"),
                            ("platform", "Platform"),
                        ],
                        max_length=8,
                    ),
                ),
            ],
        ),
        migrations.RemoveConstraint(
            model_name="account",
            name="billing_account_owner_fits_kind",
        ),
        migrations.RemoveConstraint(
            model_name="account",
            name="billing_account_never_overdrawn",
        ),
        migrations.AddField(
            model_name="account",
            name="may_be_negative",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AlterField(
            model_name="account",
            name="kind",
            field=models.CharField(max_length=24),
        ),
        migrations.AlterField(
            model_name="incident",
            name="kind",
            field=models.CharField(max_length=32),
        ),
        migrations.AlterField(
            model_name="ledgertransaction",
            name="kind",
            field=models.CharField(max_length=24),
        ),
        migrations.AlterField(
            model_name="outbox",
            name="topic",
            field=models.CharField(max_length=40),
        ),
        migrations.AlterField(
            model_name="periodmovement",
            name="kind",
            field=models.CharField(max_length=24),
        ),
        migrations.AddConstraint(
            model_name="allowance",
            constraint=models.CheckConstraint(
                condition=models.Q(("held_nano_usd__gte", 0), ("used_nano_usd__gte", 0)),
                name="billing_allowance_not_negative",
            ),
        ),
        migrations.AddField(
            model_name="budgetnode",
            name="api_key",
            field=models.OneToOneField(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="budget_node", to="accounts.apikey"
            ),
        ),
        migrations.AddField(
            model_name="budgetnode",
            name="organization",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="budget_nodes", to="accounts.organization"
            ),
        ),
        migrations.AddField(
            model_name="budgetnode",
            name="parent",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="children", to="billing.budgetnode"
            ),
        ),
        migrations.AddField(
            model_name="correction",
            name="prediction",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="corrections", to="billing.hold"
            ),
        ),
        migrations.AddField(
            model_name="correction",
            name="transaction",
            field=models.OneToOneField(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="correction",
                to="billing.ledgertransaction",
            ),
        ),
        migrations.AddField(
            model_name="lot",
            name="account",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="lots", to="billing.account"
            ),
        ),
        migrations.AddField(
            model_name="lot",
            name="transaction",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="lots", to="billing.ledgertransaction"
            ),
        ),
        migrations.AddIndex(
            model_name="budgetnode",
            index=models.Index(fields=["organization"], name="billing_budget_organization"),
        ),
        migrations.AddConstraint(
            model_name="budgetnode",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "organization")), fields=("organization",), name="billing_budget_one_root"
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetnode",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "end_user")),
                fields=("parent", "end_user"),
                name="billing_budget_one_end_user",
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetnode",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("held_nano_usd__gte", 0),
                    ("spent_this_month_nano_usd__gte", 0),
                    ("spent_today_nano_usd__gte", 0),
                    ("spent_total_nano_usd__gte", 0),
                ),
                name="billing_budget_node_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetnode",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("api_key__isnull", False), ("end_user__isnull", True), ("kind", "key")),
                    models.Q(
                        ("api_key__isnull", True),
                        ("end_user__isnull", False),
                        ("kind", "end_user"),
                        ("parent__isnull", False),
                    ),
                    models.Q(
                        ("api_key__isnull", True),
                        ("end_user__isnull", True),
                        ("kind", "organization"),
                        ("parent__isnull", True),
                    ),
                    models.Q(("api_key__isnull", True), ("end_user__isnull", True), ("kind", "team")),
                    _connector="OR",
                ),
                name="billing_budget_node_fits_kind",
            ),
        ),
        migrations.AddConstraint(
            model_name="correction",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("amount_nano_usd", 0), ("transaction__isnull", True)),
                    models.Q(("amount_nano_usd__gt", 0), ("transaction__isnull", False)),
                    _connector="OR",
                ),
                name="billing_correction_moves_its_amount",
            ),
        ),
        migrations.AddIndex(
            model_name="lot",
            index=models.Index(
                condition=models.Q(("remaining__gt", 0)), fields=["account", "id"], name="billing_lot_rest"
            ),
        ),
        migrations.AddIndex(
            model_name="lot",
            index=models.Index(
                condition=models.Q(("expires_at__isnull", False), ("remaining__gt", 0)),
                fields=["expires_at"],
                name="billing_lot_expiry",
            ),
        ),
        migrations.AddConstraint(
            model_name="lot",
            constraint=models.CheckConstraint(
                condition=models.Q(("opening__gte", 0), ("remaining__gte", 0)), name="billing_lot_not_negative"
            ),
        ),
        migrations.AddConstraint(
            model_name="lot",
            constraint=models.CheckConstraint(
                condition=models.Q(("expires_at__isnull", True), ("kind", "promotional"), _connector="OR"),
                name="billing_lot_paid_never_expires",
            ),
        ),
        migrations.AddIndex(
            model_name="splitpart",
            index=models.Index(fields=["organization_id"], name="billing_split_part_payee"),
        ),
        migrations.AddConstraint(
            model_name="splitpart",
            constraint=models.CheckConstraint(
                condition=models.Q(("basis_points__gte", 0), ("basis_points__lte", 10000)),
                name="billing_split_part_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="splitpart",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("organization_id__isnull", True), ("reason", "platform")),
                    models.Q(models.Q(("reason", "platform"), _negated=True), ("organization_id__isnull", False)),
                    _connector="OR",
                ),
                name="billing_split_part_platform_is_nobody",
            ),
        ),
        migrations.RunSQL(SQL.read_text(), UNDO.read_text()),
        # After the accounts have what their kinds allow.
        migrations.AddConstraint(
            model_name="account",
            constraint=models.CheckConstraint(
                condition=models.Q(("may_be_negative", True), ("posted__gte", models.F("held")), _connector="OR"),
                name="billing_account_never_overdrawn",
            ),
        ),
    ]
