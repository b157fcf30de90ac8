from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0031_webhook_events"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="earningsday",
            index=models.Index(fields=["organization_id", "model_id", "day"], name="billing_earningsday_model"),
        ),
    ]
