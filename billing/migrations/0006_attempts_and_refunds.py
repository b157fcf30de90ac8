"""A hold is bound to one attempt at one replica, keeps what its ticket grants and what was delivered; charges whose
answer never went out are refunded.

Holds of before have an unknown grant: the largest number that a receipt may name. There is no way back, because the
functions of before know neither attempts nor refunds.
"""

from pathlib import Path

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

SQL = Path(__file__).with_name("sql")
ANY_TOKENS = 2**53 - 1
NOW = django.db.models.functions.datetime.Now()


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_key_lines"), ("billing", "0005_books_close")]

    operations = [
        migrations.CreateModel(
            name="GatewayProcess",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("host", models.TextField()),
                ("started_at", models.DateTimeField(db_default=NOW)),
                ("last_seen_at", models.DateTimeField(db_default=NOW)),
            ],
            options={"db_table": "billing_gateway"},
        ),
        migrations.CreateModel(
            name="Refund",
            fields=[
                (
                    "prediction",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="refund",
                        serialize=False,
                        to="billing.hold",
                    ),
                ),
                ("reason", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(db_default=NOW)),
            ],
        ),
        migrations.AddField("hold", "attempt", models.SmallIntegerField(db_default=1, default=1)),
        migrations.AddField("hold", "gateway_id", models.UUIDField(null=True)),
        migrations.AddField("hold", "adapter", models.TextField(null=True)),
        migrations.AddField("hold", "base", models.TextField(blank=True, db_default="", default="")),
        migrations.AddField(
            "hold", "max_prompt_tokens", models.BigIntegerField(default=ANY_TOKENS), preserve_default=False
        ),
        migrations.AddField("hold", "max_tokens", models.BigIntegerField(default=ANY_TOKENS), preserve_default=False),
        migrations.AddField("hold", "dispatched_at", models.DateTimeField(db_default=NOW)),
        migrations.AddField("hold", "delivered_tokens", models.BigIntegerField(null=True)),
        migrations.AddField("hold", "verdict_at", models.DateTimeField(null=True)),
        migrations.AlterField(
            "outbox",
            "topic",
            models.CharField(
                choices=[
                    ("prediction.settled", "Prediction Settled"),
                    ("prediction.refunded", "Prediction Refunded"),
                    ("top_up.credited", "Top Up Credited"),
                ],
                max_length=40,
            ),
        ),
        migrations.AddConstraint(
            "hold",
            models.CheckConstraint(
                condition=models.Q(attempt__gte=1, max_prompt_tokens__gte=0, max_tokens__gte=0),
                name="billing_hold_grant_fits",
            ),
        ),
        migrations.AddConstraint(
            "hold",
            models.CheckConstraint(
                condition=models.Q(delivered_tokens__isnull=True, verdict_at__isnull=True)
                | models.Q(delivered_tokens__isnull=False, delivered_tokens__gte=0, verdict_at__isnull=False),
                name="billing_hold_verdict_fits",
            ),
        ),
        migrations.RunSQL((SQL / "0006_holds.sql").read_text()),
        migrations.RunSQL((SQL / "0006_settle.sql").read_text()),
    ]
