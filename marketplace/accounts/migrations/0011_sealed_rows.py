"""Rows that carry authority are sealed (`accounts.seals`). Rows of before have no seal, and count for nothing."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0010_feature_switches")]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="membership",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="user",
            name="seal",
            field=models.BinaryField(db_default=b"", editable=False, max_length=32),
        ),
        migrations.CreateModel(
            name="RowSeal",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("table", models.CharField(max_length=60)),
                ("row_id", models.CharField(max_length=40)),
                ("seal", models.BinaryField(max_length=32)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("table", "row_id"), name="row_seal_unique")],
            },
        ),
        migrations.AlterModelOptions(name="apikey", options={"base_manager_name": "objects"}),
    ]
