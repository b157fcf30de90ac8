"""Each customer has a key of its own for the answers that are kept for its retries."""

import django.db.models.deletion
import django.db.models.functions
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_key_lines"), ("vault", "0006_receipt_keys")]
    operations = [
        migrations.CreateModel(
            name="AnswerKey",
            fields=[
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        serialize=False,
                        to="accounts.organization",
                    ),
                ),
                ("wrapped_key", models.BinaryField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.Now())),
            ],
        ),
    ]
