"""Usage of long ago is dropped by month, once its sums, papers and receipts are complete. There is no way back once a
month was dropped; before that the migration is reversible.
"""

from pathlib import Path

from django.db import migrations, models
from django.db.models.functions import Now

SQL = Path(__file__).with_name("sql") / "0024_retention.sql"
DROP = """
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM billing_droppedusage) THEN
        RAISE EXCEPTION 'months of usage were dropped: older code would take their charges for lost';
    END IF;
END $$;
DROP FUNCTION billing_drop_usage(date), billing_usage_uncounted(timestamptz, timestamptz),
    billing_usage_papers_missing(timestamptz, timestamptz), billing_usage_proven(date);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0023_refunds_and_disputes")]

    operations = [
        migrations.CreateModel(
            name="DroppedUsage",
            fields=[
                ("month", models.DateField(primary_key=True, serialize=False)),
                ("predictions", models.BigIntegerField()),
                ("cost_nano_usd", models.BigIntegerField()),
                ("dropped_at", models.DateTimeField(db_default=Now())),
            ],
        ),
        migrations.RunSQL(SQL.read_text(), DROP),
    ]
