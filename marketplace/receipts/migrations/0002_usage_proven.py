"""Usage is dropped only when every charge of its month was looked at for the daily trees, and their roots are public."""

from django.db import migrations

CREATE = """
CREATE OR REPLACE FUNCTION billing_usage_proven(p_month date) RETURNS boolean LANGUAGE sql STABLE AS $$
-- Whether the trees of all days of a month have its charges, and a published head covers each tree whole.
    SELECT NOT EXISTS (
        SELECT 1 FROM (
            SELECT (created_at AT TIME ZONE 'UTC')::date AS day, count(*) AS charges FROM billing_usage
            WHERE created_at >= p_month::timestamp AT TIME ZONE 'UTC'
                AND created_at < (p_month + interval '1 month') AT TIME ZONE 'UTC'
            GROUP BY 1
        ) used LEFT JOIN receipts_day tree ON tree.day = used.day
        WHERE tree.charges IS DISTINCT FROM used.charges
            OR (tree.leaves > 0
                AND NOT EXISTS (SELECT 1 FROM receipts_head h WHERE h.day = tree.day AND h.size = tree.leaves))
    )
$$;
"""
UNDO = """
CREATE OR REPLACE FUNCTION billing_usage_proven(p_month date) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT true';
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0024_retention"), ("receipts", "0001_initial")]

    operations = [migrations.RunSQL(CREATE, UNDO)]
