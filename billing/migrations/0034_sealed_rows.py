"""Rows that say who is paid, and whose card pays, are sealed (`accounts.seals`)."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0033_attempts_of_checkpoints")]

    operations = [
        migrations.AddField(
            model_name="autotopup",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="payoutaccount",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="savedcard",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="stripecustomer",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AlterModelOptions(name="savedcard", options={"base_manager_name": "objects"}),
        migrations.AlterModelOptions(name="stripecustomer", options={"base_manager_name": "objects"}),
    ]
