"""Incidents about keys: one asked for without demand, and more of them than a replica may be lent."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0008_stripe_retries")]

    operations = [
        migrations.AlterField(
            model_name="incident",
            name="kind",
            field=models.CharField(
                choices=[
                    ("ledger_sum", "Ledger Sum"),
                    ("balance_cache", "Balance Cache"),
                    ("held_cache", "Held Cache"),
                    ("payment_mismatch", "Payment Mismatch"),
                    ("stripe_event", "Stripe Event"),
                    ("receipt_refused", "Receipt Refused"),
                    ("receipt_mismatch", "Receipt Mismatch"),
                    ("release_without_demand", "Release Without Demand"),
                    ("release_budget", "Release Budget"),
                ],
                max_length=24,
            ),
        ),
    ]
