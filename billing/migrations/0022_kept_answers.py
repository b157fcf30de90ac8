"""Answers of predictions with an idempotency key are kept for 24 h, in the database transaction of their charge."""

from pathlib import Path

import django.db.models.functions
from django.db import migrations, models
from django.db.models import Q

SQL = Path(__file__).with_name("sql")
UNIQUE = "billing_hold_unique_idempotency_key"


class Migration(migrations.Migration):
    dependencies = [("billing", "0021_rollups")]
    operations = [
        migrations.CreateModel(
            name="KeptAnswer",
            fields=[
                ("prediction_id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("content", models.BinaryField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.Now())),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["expires_at"], name="billing_keptanswer_expiry"),
                    models.Index(fields=["organization_id"], name="billing_keptanswer_owner"),
                ],
            },
        ),
        migrations.RemoveConstraint("hold", UNIQUE),
        # On the way back this fails while a key was used twice: then those holds' rows would have to go first.
        migrations.AddConstraint(
            "hold",
            models.UniqueConstraint(
                condition=Q(state="open") & Q(idempotency_key__isnull=False),
                fields=("account", "idempotency_key"),
                name=UNIQUE,
            ),
        ),
        migrations.RunSQL((SQL / "0022_kept_answers.sql").read_text(), (SQL / "0022_undo.sql").read_text()),
    ]
