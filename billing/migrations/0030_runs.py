"""Runs: a budget, a count of calls and a deadline over many predictions. The way back is closed while runs exist."""

from pathlib import Path

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.models import F, Q

SQL = Path(__file__).with_name("sql")
_RULES = (SQL / "0025_rules.sql").read_text()
_GUARD, _END = "CREATE OR REPLACE FUNCTION billing_guard_hold()", "END $$;\n"
_OLD_GUARD = _RULES[_RULES.index(_GUARD) : _RULES.index(_END, _RULES.index(_GUARD)) + len(_END)]
UNDO = f"""
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM billing_run) THEN
        RAISE EXCEPTION 'there are runs: older code would let their calls spend without their limits';
    END IF;
END $$;
{_OLD_GUARD}
{(SQL / "0025_place.sql").read_text()}
DROP FUNCTION billing_call_path(billing_hold_item), billing_run_refusal(billing_hold_item);
DROP FUNCTION billing_open_run(uuid, uuid, uuid, text, jsonb, bigint, integer, integer, integer);
ALTER TYPE billing_hold_item DROP ATTRIBUTE run_id;
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_audit"), ("billing", "0029_borne_corrections")]

    operations = [
        migrations.AlterField(
            "budgetnode",
            "kind",
            models.CharField(
                choices=[
                    ("organization", "Organization"),
                    ("team", "Team"),
                    ("key", "Key"),
                    ("end_user", "End User"),
                    ("run", "Run"),
                ],
                max_length=12,
            ),
        ),
        migrations.RemoveConstraint("budgetnode", "billing_budget_node_fits_kind"),
        migrations.AddConstraint(
            "budgetnode",
            models.CheckConstraint(
                condition=Q(kind="key", api_key__isnull=False, end_user__isnull=True)
                | Q(kind="end_user", api_key__isnull=True, end_user__isnull=False, parent__isnull=False)
                | Q(kind__in=["organization", "run"], api_key__isnull=True, end_user__isnull=True, parent__isnull=True)
                | Q(kind="team", api_key__isnull=True, end_user__isnull=True),
                name="billing_budget_node_fits_kind",
            ),
        ),
        migrations.CreateModel(
            "Run",
            [
                (
                    "node",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="run",
                        serialize=False,
                        to="billing.budgetnode",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="runs",
                        to="accounts.organization",
                    ),
                ),
                ("key_line", models.UUIDField()),
                ("metadata", models.JSONField(db_default={}, default=dict)),
                ("max_calls", models.IntegerField()),
                ("calls", models.IntegerField(db_default=0, default=0)),
                ("deadline", models.DateTimeField()),
                ("closed_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(max_calls__gte=1, calls__gte=0, calls__lte=F("max_calls")),
                        name="billing_run_calls_fit",
                    )
                ],
                "indexes": [
                    models.Index(fields=["organization", "-created_at", "-node"], name="billing_run_organization"),
                    models.Index(fields=["deadline"], name="billing_run_deadline"),
                ],
            },
        ),
        migrations.AddField("hold", "run_id", models.UUIDField(null=True)),
        migrations.AddIndex(
            "hold",
            models.Index(
                fields=["run_id", "created_at", "id"], condition=Q(run_id__isnull=False), name="billing_hold_run"
            ),
        ),
        migrations.RunSQL((SQL / "0030_runs.sql").read_text(), UNDO),
    ]
