"""Events of Stripe and top-ups that wait are tried again, less and less often, for as long as it takes."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0007_receipt_incidents"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="stripeevent",
            name="billing_event_waiting",
        ),
        migrations.AddField(
            model_name="stripeevent",
            name="next_attempt_at",
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
        ),
        migrations.AddField(
            model_name="topup",
            name="checks",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="topup",
            name="next_check_at",
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), null=True),
        ),
        migrations.AddField(
            model_name="topup",
            name="tax_cents",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddIndex(
            model_name="stripeevent",
            index=models.Index(
                condition=models.Q(("processed_at__isnull", True)),
                fields=["next_attempt_at"],
                name="billing_event_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="topup",
            index=models.Index(
                condition=models.Q(("state__in", ["created", "pending"]), ("next_check_at__isnull", False)),
                fields=["next_check_at"],
                name="billing_top_up_waiting",
            ),
        ),
    ]
