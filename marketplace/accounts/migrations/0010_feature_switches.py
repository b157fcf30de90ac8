from __future__ import annotations

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0009_suspension")]

    operations = [
        migrations.CreateModel(
            name="FeatureSwitch",
            fields=[
                ("name", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("percent", models.PositiveSmallIntegerField()),
                (
                    "on_for",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.UUIDField(), blank=True, default=list, size=None
                    ),
                ),
                (
                    "off_for",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.UUIDField(), blank=True, default=list, size=None
                    ),
                ),
                ("changed_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("percent__lte", 100)), name="feature_percent_is_a_share")
                ]
            },
        )
    ]
