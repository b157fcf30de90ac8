"""The default version of a model, rollouts by percentage, and announced ends of versions: columns without a default."""

import uuid

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0012_guards"),
    ]

    operations = [
        migrations.CreateModel(
            name="Rollout",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("percent", models.PositiveSmallIntegerField()),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("finished", "Finished"),
                            ("rolled_back", "Rolled Back"),
                            ("stopped", "Stopped"),
                            ("superseded", "Superseded"),
                            ("withdrawn", "Withdrawn"),
                        ],
                        db_default="",
                        default="",
                        max_length=12,
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="model",
            name="default_version",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="catalog.version",
            ),
        ),
        migrations.AddField(
            model_name="version",
            name="deprecated_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="version",
            name="ends_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="version",
            name="replacement",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="catalog.version",
            ),
        ),
        migrations.AddIndex(
            model_name="version",
            index=models.Index(
                condition=models.Q(("ends_at__isnull", False)), fields=["ends_at"], name="version_ending"
            ),
        ),
        migrations.AddConstraint(
            model_name="version",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("deprecated_at", None), ("ends_at", None)),
                    models.Q(("deprecated_at__isnull", False), ("ends_at__gt", models.F("deprecated_at"))),
                    _connector="OR",
                ),
                name="version_end_after_notice",
            ),
        ),
        migrations.AddField(
            model_name="rollout",
            name="baseline",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="catalog.version"
            ),
        ),
        migrations.AddField(
            model_name="rollout",
            name="model",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="rollouts", to="catalog.model"
            ),
        ),
        migrations.AddField(
            model_name="rollout",
            name="version",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="catalog.version"
            ),
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at", None)), fields=("model",), name="rollout_one_open"
            ),
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.CheckConstraint(
                condition=models.Q(("percent__range", (1, 100))), name="rollout_percent_fits"
            ),
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.CheckConstraint(
                condition=models.Q(("version", models.F("baseline")), _negated=True), name="rollout_of_another_version"
            ),
        ),
    ]
