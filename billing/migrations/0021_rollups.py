"""Sums of usage and earnings, filled from the books of before."""

from pathlib import Path

from django.db import migrations, models

SQL = Path(__file__).with_name("sql") / "0021_rollups.sql"
DROP = """
DROP TRIGGER billing_usage_queued ON billing_usage;
DROP TRIGGER billing_correction_queued ON billing_correction;
DROP FUNCTION billing_queue_usage(), billing_queue_correction(), billing_roll_up(integer);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0020_move_books"),
    ]

    operations = [
        migrations.CreateModel(
            name="RollupMark",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("complete_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="RollupQueue",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("prediction_id", models.UUIDField()),
                ("settled_at", models.DateTimeField()),
                ("correction_id", models.UUIDField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="SpanCustomer",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "organization_id",
                        "subject",
                        "span",
                        "start",
                        "customer_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("organization_id", models.UUIDField()),
                ("subject", models.UUIDField()),
                ("span", models.SmallIntegerField()),
                ("start", models.DateField()),
                ("customer_id", models.UUIDField()),
            ],
        ),
        migrations.CreateModel(
            name="SpanTotal",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "facet",
                        "organization_id",
                        "span",
                        "start",
                        "subject",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "facet",
                    models.CharField(
                        choices=[
                            ("usage", "Usage"),
                            ("usage_model", "Usage Model"),
                            ("usage_key", "Usage Key"),
                            ("earnings", "Earnings"),
                            ("earnings_model", "Earnings Model"),
                            ("platform", "Platform"),
                        ],
                        max_length=16,
                    ),
                ),
                ("organization_id", models.UUIDField()),
                ("span", models.SmallIntegerField()),
                ("start", models.DateField()),
                ("subject", models.UUIDField()),
                ("label", models.CharField(max_length=128)),
                ("predictions", models.BigIntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
                ("charged_nano_usd", models.BigIntegerField()),
                ("earned_nano_usd", models.BigIntegerField()),
                ("customers", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="EarningsDay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField()),
                ("organization_id", models.UUIDField()),
                ("reason", models.CharField(max_length=16)),
                ("model_id", models.UUIDField()),
                ("version_id", models.UUIDField(null=True)),
                ("latency_class", models.CharField(max_length=16)),
                ("model_name", models.CharField(max_length=128)),
                ("predictions", models.BigIntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
                ("charged_nano_usd", models.BigIntegerField()),
                ("earned_nano_usd", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="UsageDay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField()),
                ("organization_id", models.UUIDField()),
                ("key_line", models.UUIDField(null=True)),
                ("model_id", models.UUIDField()),
                ("version_id", models.UUIDField(null=True)),
                ("latency_class", models.CharField(max_length=16)),
                ("model_name", models.CharField(max_length=128)),
                ("predictions", models.BigIntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
                ("charged_nano_usd", models.BigIntegerField()),
            ],
        ),
        # Not with the tables: Django would add them after the SQL, which needs them.
        migrations.AddConstraint(
            model_name="earningsday",
            constraint=models.UniqueConstraint(
                fields=("organization_id", "day", "reason", "model_id", "version_id", "latency_class"),
                name="billing_earningsday_unique",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="usageday",
            constraint=models.UniqueConstraint(
                fields=("organization_id", "day", "model_id", "key_line", "version_id", "latency_class"),
                name="billing_usageday_unique",
                nulls_distinct=False,
            ),
        ),
        migrations.RunSQL(SQL.read_text(), DROP),
    ]
