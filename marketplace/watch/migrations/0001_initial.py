"""Sums of models in use, blocks, drift, alarms and thumbs; a trigger passes on what the sums of usage have counted."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

TAKE = """
CREATE FUNCTION watch_take_counted() RETURNS trigger LANGUAGE plpgsql AS $$
-- In the transaction of billing_roll_up, which nobody waits for: no prediction pays for it.
BEGIN
    INSERT INTO watch_settled (prediction_id, settled_at)
        SELECT prediction_id, settled_at FROM removed WHERE correction_id IS NULL ORDER BY id;
    RETURN NULL;
END $$;
CREATE TRIGGER watch_counted AFTER DELETE ON billing_rollupqueue REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION watch_take_counted();
-- Predictions that were counted before.
INSERT INTO watch_settled (prediction_id, settled_at)
    SELECT u.prediction_id, u.created_at FROM billing_usage u
    WHERE NOT EXISTS (SELECT 1 FROM billing_rollupqueue q
        WHERE q.prediction_id = u.prediction_id AND q.correction_id IS NULL)
    ORDER BY u.created_at;
"""
UNDO = "DROP TRIGGER watch_counted ON billing_rollupqueue; DROP FUNCTION watch_take_counted();"


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("billing", "0026_printed_papers"),
        ("catalog", "0007_contract"),
    ]

    operations = [
        migrations.CreateModel(
            name="Baseline",
            fields=[
                ("version_id", models.UUIDField(primary_key=True, serialize=False)),
                ("calls", models.BigIntegerField(default=0)),
                (
                    "prompt",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "answers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                ("window_start", models.DateTimeField(null=True)),
                ("window_calls", models.BigIntegerField(default=0)),
                (
                    "window_prompt",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "window_answers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Mark",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("complete_at", models.DateTimeField(null=True)),
                ("refusals", models.UUIDField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Settled",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("prediction_id", models.UUIDField()),
                ("settled_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="ThumbTotal",
            fields=[
                ("version_id", models.UUIDField(primary_key=True, serialize=False)),
                ("up", models.BigIntegerField(default=0)),
                ("down", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Alarm",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version_id", models.UUIDField()),
                ("metric", models.CharField(max_length=12)),
                ("firing", models.BooleanField(default=False)),
                ("streak", models.PositiveSmallIntegerField(default=0)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("version_id", "metric"), name="watch_alarm_once")],
            },
        ),
        migrations.CreateModel(
            name="Block",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("calls", models.BigIntegerField(default=0)),
                ("failures", models.BigIntegerField(default=0)),
                ("spent_nano_usd", models.BigIntegerField(default=0)),
                ("finish", models.JSONField(default=dict)),
                ("refused", models.JSONField(default=dict)),
                (
                    "prompt",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "completion",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "ttft",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "duration",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "answers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                ("version_id", models.UUIDField()),
                ("start", models.DateTimeField()),
                ("end", models.DateTimeField()),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("version_id", "end"), name="watch_block_once")],
            },
        ),
        migrations.CreateModel(
            name="Hour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("calls", models.BigIntegerField(default=0)),
                ("failures", models.BigIntegerField(default=0)),
                ("spent_nano_usd", models.BigIntegerField(default=0)),
                ("finish", models.JSONField(default=dict)),
                ("refused", models.JSONField(default=dict)),
                (
                    "prompt",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "completion",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "ttft",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "duration",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                (
                    "answers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                ("version_id", models.UUIDField()),
                ("hour", models.DateTimeField()),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("version_id", "hour"), name="watch_hour_once")],
            },
        ),
        migrations.CreateModel(
            name="HourCaller",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version_id", models.UUIDField()),
                ("hour", models.DateTimeField()),
                ("organization_id", models.UUIDField()),
                ("requests", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("version_id", "hour", "organization_id"), name="watch_caller_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Payer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version_id", models.UUIDField()),
                ("organization_id", models.UUIDField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("version_id", "organization_id"), name="watch_payer_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Thumb",
            fields=[
                ("prediction_id", models.UUIDField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("version_id", models.UUIDField()),
                ("is_up", models.BooleanField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("is_counted", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("is_counted", False)), fields=["created_at"], name="watch_thumb_uncounted"
                    ),
                    models.Index(fields=["organization_id", "-created_at"], name="watch_thumb_organization"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Window",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version_id", models.UUIDField()),
                ("start", models.DateTimeField()),
                ("end", models.DateTimeField()),
                ("calls", models.BigIntegerField()),
                ("prompt_psi", models.FloatField()),
                ("answers_psi", models.FloatField(null=True)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("version_id", "end"), name="watch_window_once")],
            },
        ),
        migrations.CreateModel(
            name="Threshold",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("metric", models.CharField(max_length=12)),
                ("value", models.FloatField(null=True)),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="catalog.model"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("model", "metric"), name="watch_threshold_once")],
            },
        ),
        migrations.RunSQL(TAKE, UNDO),
    ]
