"""Rows that carry authority are sealed (`accounts.seals`). Rows of before have no seal, and count for nothing."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("teams", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="invite",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="transfer",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AlterModelOptions(name="transfer", options={"base_manager_name": "objects"}),
    ]
