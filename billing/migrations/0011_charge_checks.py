"""Charges are checked as they are committed: a hold keeps the database transaction that settled it."""

from django.db import migrations, models

CREATE = """
CREATE FUNCTION billing_note_settlement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.settled_in := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_hold_settlement BEFORE UPDATE OF state ON billing_hold
    FOR EACH ROW WHEN (NEW.state = 'settled') EXECUTE FUNCTION billing_note_settlement();
"""
DROP = "DROP TRIGGER billing_hold_settlement ON billing_hold; DROP FUNCTION billing_note_settlement();"


class Migration(migrations.Migration):
    dependencies = [("billing", "0010_locks")]

    operations = [
        migrations.CreateModel(
            name="LedgerCheckpoint",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("through", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.AddField("hold", "settled_in", models.BigIntegerField(null=True)),
        migrations.AddIndex(
            "hold",
            models.Index(
                fields=["settled_in"],
                condition=models.Q(settled_in__isnull=False),
                name="billing_hold_settled_in",
            ),
        ),
        migrations.AddIndex(
            "ledgertransaction",
            models.Index(fields=["database_transaction"], name="billing_transaction_written_in"),
        ),
        migrations.AlterField(
            model_name="incident",
            name="kind",
            field=models.CharField(
                choices=[
                    ("ledger_sum", "Ledger Sum"),
                    ("balance_cache", "Balance Cache"),
                    ("held_cache", "Held Cache"),
                    ("charge_mismatch", "Charge Mismatch"),
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
        migrations.RunSQL(CREATE, DROP),
    ]
