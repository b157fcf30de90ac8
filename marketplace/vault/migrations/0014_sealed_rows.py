"""Rows that carry authority are sealed (`accounts.seals`). Rows of before have no seal, and count for nothing."""

import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("vault", "0013_fleet_credentials")]

    operations = [
        migrations.AddField(
            model_name="enrolledreplica",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="fleetcredential",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="platformkey",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="releaseorder",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="replica",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="signingkey",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AlterField(
            model_name="platformkey",
            name="created_at",
            field=models.DateTimeField(default=django.utils.timezone.now),
        ),
        migrations.AlterModelOptions(name="enrolledreplica", options={"base_manager_name": "objects"}),
        migrations.AlterModelOptions(name="fleetcredential", options={"base_manager_name": "objects"}),
        migrations.AlterModelOptions(name="platformkey", options={"base_manager_name": "objects"}),
        migrations.AlterModelOptions(name="signingkey", options={"base_manager_name": "objects"}),
    ]
