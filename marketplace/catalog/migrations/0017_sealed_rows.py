"""Rows that carry authority are sealed (`accounts.seals`). Rows of before have no seal, and count for nothing."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0016_versions_by_change")]

    operations = [
        migrations.AddField(
            model_name="model",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="version",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
    ]
