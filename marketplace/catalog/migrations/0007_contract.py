"""The public part of a version's contract, as the verifying replica reported it."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """A nullable column: no table is rewritten."""

    dependencies: ClassVar = [("catalog", "0006_search")]

    operations: ClassVar = [
        migrations.AddField("version", "contract", models.JSONField(blank=True, null=True)),
    ]
