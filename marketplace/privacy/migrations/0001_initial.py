"""The list of what was erased."""

import uuid

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Erasure",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "subject",
                    models.CharField(
                        choices=[("user", "User"), ("organization", "Organization")],
                        max_length=12,
                    ),
                ),
                ("subject_id", models.UUIDField()),
                ("erased_by", models.UUIDField(null=True)),
                ("left_nano_usd", models.BigIntegerField(default=0)),
                ("erased_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("subject", "subject_id"), name="privacy_erasure_once")],
            },
        ),
    ]
