"""Runs that set the threshold of a model's guard, and the guards of models."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies: ClassVar = [("evals", "0001_initial")]

    operations: ClassVar = [
        migrations.AddField(
            "evalrun",
            "guard",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="catalog.version"
            ),
        ),
        migrations.CreateModel(
            name="ModelGuard",
            fields=[
                (
                    "model",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="attack_guard",
                        serialize=False,
                        to="catalog.model",
                    ),
                ),
                ("threshold_milli", models.IntegerField()),
                ("rows", models.PositiveIntegerField()),
                ("flagged", models.PositiveIntegerField()),
                ("created_at", models.DateTimeField(db_default=Now())),
                (
                    "guard",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="catalog.version"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="evals.evalrun"
                    ),
                ),
            ],
        ),
    ]
