"""The price of a prediction with its latency class: one SQL function, the twin of billing.pricing.cost_nano_usd."""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).with_name("sql") / "0014_gross.sql"
DROP = """
DROP FUNCTION billing_gross_nano_usd(bigint, bigint, bigint, bigint, integer, bigint, bigint, bigint);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0013_books_reshaped")]
    operations = [migrations.RunSQL(SQL.read_text(), DROP)]
