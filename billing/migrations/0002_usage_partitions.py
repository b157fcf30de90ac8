"""The usage table: range-partitioned by month, append-only.

A default partition takes rows of months that have none yet, so a missed run of `create_usage_partitions` loses nothing.
"""

import django.db.models.functions.datetime
from django.db import migrations, models

CREATE = """
CREATE TABLE billing_usage (
    prediction_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    organization_id uuid NOT NULL,
    api_key_id uuid,
    model_name varchar(128) NOT NULL,
    model_id uuid NOT NULL,
    version_id uuid,
    creator_organization_id uuid NOT NULL,
    replica_id uuid,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    input_micro_usd_per_mtok bigint NOT NULL,
    cached_input_micro_usd_per_mtok bigint NOT NULL,
    output_micro_usd_per_mtok bigint NOT NULL,
    per_prediction_nano_usd bigint NOT NULL,
    creator_bps integer NOT NULL,
    cost_nano_usd bigint NOT NULL,
    creator_nano_usd bigint NOT NULL,
    platform_nano_usd bigint NOT NULL,
    finish_reason varchar(32) NOT NULL,
    receipt text NOT NULL,
    PRIMARY KEY (prediction_id, created_at),
    CONSTRAINT billing_usage_tokens_fit CHECK
        (prompt_tokens >= 0 AND cached_tokens BETWEEN 0 AND prompt_tokens AND completion_tokens > 0),
    CONSTRAINT billing_usage_shares_make_cost CHECK
        (creator_nano_usd >= 0 AND platform_nano_usd >= 0 AND creator_nano_usd + platform_nano_usd = cost_nano_usd)
) PARTITION BY RANGE (created_at);

CREATE INDEX billing_usage_organization ON billing_usage (organization_id, created_at DESC);
CREATE INDEX billing_usage_creator ON billing_usage (creator_organization_id, created_at DESC);
CREATE TABLE billing_usage_default PARTITION OF billing_usage DEFAULT;

CREATE FUNCTION billing_create_usage_partition(p_day date) RETURNS boolean LANGUAGE plpgsql AS $$
-- Creates the partition of the UTC month that holds p_day. False if it exists, or if the default partition already
-- has rows of that month: those stay where they are, and queries see them all the same.
DECLARE
    first_day date := date_trunc('month', p_day);
    lower timestamptz := first_day::timestamp AT TIME ZONE 'UTC';
    upper timestamptz := (first_day + interval '1 month') AT TIME ZONE 'UTC';
    partition text := 'billing_usage_' || to_char(first_day, 'YYYY_MM');
BEGIN
    IF to_regclass(partition) IS NOT NULL
       OR EXISTS (SELECT 1 FROM billing_usage_default WHERE created_at >= lower AND created_at < upper) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I PARTITION OF billing_usage FOR VALUES FROM (%L) TO (%L)', partition, lower, upper);
    RETURN true;
END $$;

SELECT billing_create_usage_partition((date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => m))::date)
FROM generate_series(0, 2) AS m;
"""

DROP = """
DROP FUNCTION billing_create_usage_partition(date);
DROP TABLE billing_usage;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(CREATE, DROP)],
            state_operations=[
                migrations.CreateModel(
                    name="Usage",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "prediction_id",
                                "created_at",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("prediction_id", models.UUIDField()),
                        ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                        ("organization_id", models.UUIDField()),
                        ("api_key_id", models.UUIDField(null=True)),
                        ("model_name", models.CharField(max_length=128)),
                        ("model_id", models.UUIDField()),
                        ("version_id", models.UUIDField(null=True)),
                        ("creator_organization_id", models.UUIDField()),
                        ("replica_id", models.UUIDField(null=True)),
                        ("prompt_tokens", models.BigIntegerField()),
                        ("cached_tokens", models.BigIntegerField()),
                        ("completion_tokens", models.BigIntegerField()),
                        ("input_micro_usd_per_mtok", models.BigIntegerField()),
                        ("cached_input_micro_usd_per_mtok", models.BigIntegerField()),
                        ("output_micro_usd_per_mtok", models.BigIntegerField()),
                        ("per_prediction_nano_usd", models.BigIntegerField()),
                        ("creator_bps", models.PositiveIntegerField()),
                        ("cost_nano_usd", models.BigIntegerField()),
                        ("creator_nano_usd", models.BigIntegerField()),
                        ("platform_nano_usd", models.BigIntegerField()),
                        ("finish_reason", models.CharField(max_length=32)),
                        ("receipt", models.TextField()),
                    ],
                    options={
                        "indexes": [
                            models.Index(fields=["organization_id", "-created_at"], name="billing_usage_organization"),
                            models.Index(
                                fields=["creator_organization_id", "-created_at"], name="billing_usage_creator"
                            ),
                        ],
                    },
                ),
            ],
        ),
    ]
