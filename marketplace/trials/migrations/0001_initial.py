"""Blind comparisons and their rows."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0003_referrals"),
    ]

    operations = [
        migrations.CreateModel(
            name="Trial",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("first", models.CharField(max_length=128)),
                ("second", models.CharField(max_length=128)),
                (
                    "scoring",
                    models.CharField(
                        choices=[("json", "Json"), ("fields", "Fields"), ("judge", "Judge")], max_length=8
                    ),
                ),
                (
                    "fields",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64), blank=True, default=list, size=None
                    ),
                ),
                ("budget_nano_usd", models.BigIntegerField()),
                ("seed", models.BinaryField(max_length=32)),
                ("rows_count", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[("running", "Running"), ("ended", "Ended")], default="running", max_length=8
                    ),
                ),
                (
                    "ended_by",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("decided", "Decided"),
                            ("rows", "Rows"),
                            ("budget", "Budget"),
                            ("cancelled", "Cancelled"),
                            ("credit", "Credit"),
                            ("withdrawn", "Withdrawn"),
                            ("stopped", "Stopped"),
                            ("unavailable", "Unavailable"),
                        ],
                        default="",
                        max_length=12,
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(null=True)),
                ("leased_until", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("rows_deleted_at", models.DateTimeField(null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="trials",
                        to="accounts.organization",
                    ),
                ),
                (
                    "purse",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="trial", to="accounts.apikey"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="TrialRow",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField()),
                ("sealed", models.BinaryField(null=True)),
                ("answers", models.BinaryField(null=True)),
                ("answered_at", models.DateTimeField(null=True)),
                ("winner", models.SmallIntegerField(null=True)),
                ("refused", models.BooleanField(default=False)),
                ("a_cost_nano_usd", models.BigIntegerField(default=0)),
                ("b_cost_nano_usd", models.BigIntegerField(default=0)),
                ("a_prediction_id", models.UUIDField(null=True)),
                ("b_prediction_id", models.UUIDField(null=True)),
                (
                    "trial",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rows",
                        to="trials.trial",
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="trial",
            index=models.Index(fields=["organization", "-created_at"], name="trials_of_organization"),
        ),
        migrations.AddIndex(
            model_name="trial",
            index=models.Index(
                condition=models.Q(("state", "running")), fields=["leased_until"], name="trials_running"
            ),
        ),
        migrations.AddConstraint(
            model_name="trial",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("ended_at__isnull", True), ("state", "running")),
                    models.Q(("ended_at__isnull", False), ("state", "ended")),
                    _connector="OR",
                ),
                name="trials_state_fits",
            ),
        ),
        migrations.AddConstraint(
            model_name="trialrow",
            constraint=models.UniqueConstraint(fields=("trial", "number"), name="trials_row_number"),
        ),
        migrations.AddConstraint(
            model_name="trialrow",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("winner__isnull", True),
                    models.Q(("answered_at__isnull", False), ("winner__in", [-1, 0, 1])),
                    _connector="OR",
                ),
                name="trials_row_winner_fits",
            ),
        ),
    ]
