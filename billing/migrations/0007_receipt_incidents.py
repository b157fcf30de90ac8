"""Incidents about receipts: one that was refused, and a charge that is not that of its receipt."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0006_attempts_and_refunds")]

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
                ],
                max_length=24,
            ),
        ),
    ]
