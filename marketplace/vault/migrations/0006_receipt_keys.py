"""The platform has a key for receipts, and each later one is endorsed by the one before it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("vault", "0005_confirmed_leases")]
    operations = [
        migrations.AlterField(
            "platformkey",
            "purpose",
            models.CharField(
                choices=[("intake", "Intake"), ("ticket", "Ticket"), ("vault", "Vault"), ("receipt", "Receipt")],
                max_length=8,
            ),
        ),
        migrations.AddField(
            "platformkey",
            "endorsed_by",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="vault.platformkey",
            ),
        ),
        migrations.AddField("platformkey", "endorsement", models.BinaryField(max_length=64, null=True)),
    ]
