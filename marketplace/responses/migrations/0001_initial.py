"""Kept responses."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="StoredResponse",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("previous_id", models.UUIDField(null=True)),
                ("sealed", models.BinaryField()),
                ("size", models.PositiveIntegerField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["expires_at"], name="responses_expiry"),
                    models.Index(fields=["organization_id", "created_at"], name="responses_organization"),
                ],
            },
        ),
    ]
