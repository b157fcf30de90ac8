"""Deliveries are those of `marketplace.alerts`. An alert that was still on its way is told again by it."""

from django.db import migrations

# Only one of several parts of a limit had deliveries, so only that one is told again.
TELL_AGAIN = """
UPDATE billing_budgetalert SET announced_at = NULL
WHERE id IN (SELECT alert_id FROM billing_alertdelivery WHERE next_attempt_at IS NOT NULL)
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0027_cards_and_paid_weeks")]

    operations = [
        migrations.RunSQL(TELL_AGAIN, migrations.RunSQL.noop),
        # UPDATE queues checks of foreign keys, before which the table could not be dropped.
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.DeleteModel(name="AlertDelivery"),
    ]
