"""Cards by their fingerprints, and paid credit by model and week, filled from the books of before."""

import re
from pathlib import Path

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

SQL = Path(__file__).with_name("sql")


def earlier_roll_up() -> str:
    """Return the function as migration 0021 made it."""
    found = re.search(
        r"^CREATE (FUNCTION billing_roll_up\b.*?^END \$\$;)", (SQL / "0021_rollups.sql").read_text(), re.M | re.S
    )
    assert found is not None
    return f"CREATE OR REPLACE {found[1]}"


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0003_referrals"),
        ("billing", "0026_printed_papers"),
    ]

    operations = [
        migrations.CreateModel(
            name="CardUse",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("fingerprint", models.CharField(max_length=64)),
                ("first_used_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="PaidWeek",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "model_id",
                        "week",
                        "organization_id",
                        "lot_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("model_id", models.UUIDField()),
                ("week", models.DateField()),
                ("organization_id", models.UUIDField()),
                ("lot_id", models.BigIntegerField()),
                ("paid_nano_usd", models.BigIntegerField()),
            ],
        ),
        migrations.AddField(
            model_name="savedcard",
            name="fingerprint",
            field=models.CharField(max_length=64, null=True),
        ),
        migrations.AddField(
            model_name="topup",
            name="card_fingerprint",
            field=models.CharField(max_length=64, null=True),
        ),
        migrations.AddIndex(
            model_name="hold",
            index=models.Index(
                condition=models.Q(("state", "released")), fields=["closed_at"], name="billing_hold_released"
            ),
        ),
        migrations.AddIndex(
            model_name="topup",
            index=models.Index(
                condition=models.Q(("card_fingerprint__isnull", True), ("state", "credited")),
                fields=["credited_at"],
                name="billing_top_up_card_unknown",
            ),
        ),
        migrations.AddField(
            model_name="carduse",
            name="organization",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="card_uses", to="accounts.organization"
            ),
        ),
        migrations.AddIndex(
            model_name="carduse",
            index=models.Index(fields=["fingerprint"], name="billing_card_use_fingerprint"),
        ),
        migrations.AddConstraint(
            model_name="carduse",
            constraint=models.UniqueConstraint(fields=("organization", "fingerprint"), name="billing_card_use_unique"),
        ),
        migrations.RunSQL((SQL / "0027_paid_weeks.sql").read_text(), earlier_roll_up()),
    ]
