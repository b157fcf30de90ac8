"""Base lines and clearances. Each base that is there becomes the reference of a line of its own."""

import uuid

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.models import F, Q

# A name that several bases have names one line; the others get their fingerprint behind it.
LINES = """
INSERT INTO catalog_baseline (id, name, created_at)
SELECT b.id, CASE WHEN row_number() OVER (PARTITION BY b.name ORDER BY b.created_at, b.id) = 1 THEN b.name
                  ELSE left(b.name, 90) || ' ' || left(b.fingerprint, 8) END, b.created_at
FROM catalog_basemodel b;
UPDATE catalog_basemodel SET line_id = id;
SET CONSTRAINTS ALL IMMEDIATE;
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0014_listings")]

    operations = [
        migrations.CreateModel(
            "BaseLine",
            [
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100, unique=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.AddField(
            "basemodel", "precision", models.CharField(blank=True, db_default="", default="", max_length=60)
        ),
        migrations.AddField("basemodel", "is_reference", models.BooleanField(default=True), preserve_default=False),
        migrations.AddField(
            "basemodel",
            "line",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="checkpoints",
                to="catalog.baseline",
            ),
        ),
        migrations.RunSQL(LINES, migrations.RunSQL.noop),
        migrations.AlterField(
            "basemodel",
            "line",
            models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="checkpoints", to="catalog.baseline"
            ),
        ),
        migrations.AddConstraint(
            "basemodel",
            models.UniqueConstraint(condition=Q(is_reference=True), fields=["line"], name="base_line_one_reference"),
        ),
        migrations.CreateModel(
            "Clearance",
            [
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("measuring", "Measuring"),
                            ("passed", "Passed"),
                            ("failed", "Failed"),
                        ],
                        db_default="waiting",
                        default="waiting",
                        max_length=9,
                    ),
                ),
                ("reason", models.CharField(blank=True, db_default="", default="", max_length=300)),
                (
                    "leave",
                    models.CharField(
                        blank=True,
                        choices=[("", "None"), ("given", "Given"), ("refused", "Refused")],
                        db_default="",
                        default="",
                        max_length=7,
                    ),
                ),
                ("leave_at", models.DateTimeField(null=True)),
                ("run_id", models.UUIDField(null=True)),
                ("tries", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("not_before", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("set_number", models.PositiveIntegerField(null=True)),
                ("rows", models.PositiveIntegerField(null=True)),
                ("correct", models.PositiveIntegerField(null=True)),
                ("reference_correct", models.PositiveIntegerField(null=True)),
                ("same_answers", models.PositiveIntegerField(null=True)),
                ("measured_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "is_cleared",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.ExpressionWrapper(
                            Q(leave="given") | Q(leave="", state="passed"), output_field=models.BooleanField()
                        ),
                        output_field=models.BooleanField(),
                    ),
                ),
                (
                    "checkpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="clearances",
                        to="catalog.basemodel",
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="clearances",
                        to="catalog.version",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=["version", "checkpoint"], name="clearance_unique"),
                    models.CheckConstraint(
                        condition=Q(rows__isnull=True, correct__isnull=True, reference_correct__isnull=True)
                        | Q(
                            rows__gte=1,
                            correct__lte=F("rows"),
                            reference_correct__lte=F("rows"),
                            same_answers__lte=F("rows"),
                        ),
                        name="clearance_within_rows",
                    ),
                    models.CheckConstraint(
                        condition=~Q(state="passed") | Q(rows__isnull=False), name="clearance_was_measured"
                    ),
                ],
                "indexes": [
                    models.Index(condition=Q(state="waiting"), fields=["not_before"], name="clearance_waiting")
                ],
            },
        ),
    ]
