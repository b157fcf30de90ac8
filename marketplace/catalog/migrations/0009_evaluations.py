"""Evaluations come from runs of the platform. What staff had posted before names no receipts, and is not kept."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

NO_POSTED_SCORES = "DELETE FROM catalog_evaluation"


class Migration(migrations.Migration):
    dependencies: ClassVar = [("catalog", "0008_in_review")]
    operations: ClassVar = [
        migrations.RunSQL(NO_POSTED_SCORES),  # there is no way back: they would be figures that nobody can check
        migrations.RemoveConstraint("evaluation", "evaluation_within_rows"),
        migrations.RemoveField("evaluation", "dataset"),
        migrations.AddField("evaluation", "run_id", models.UUIDField(unique=True)),
        migrations.AddField("evaluation", "set_number", models.PositiveIntegerField()),
        migrations.AddField("evaluation", "set_digest", models.CharField(max_length=64)),
        migrations.AddField("evaluation", "scorer", models.JSONField()),
        migrations.AddField("evaluation", "macro_f1_bps", models.PositiveIntegerField(null=True)),
        migrations.AddField("evaluation", "base_macro_f1_bps", models.PositiveIntegerField(null=True)),
        migrations.AddConstraint(
            "evaluation",
            models.CheckConstraint(
                condition=models.Q(correct__lte=models.F("rows"), base_correct__lte=models.F("rows"), rows__gte=1),
                name="evaluation_within_rows",
            ),
        ),
    ]
