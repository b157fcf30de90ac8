"""The policy of an API key about personal data."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column with a constant default: no table is rewritten."""

    dependencies: ClassVar = [("accounts", "0003_referrals")]

    operations: ClassVar = [
        migrations.AddField("apikey", "guards", models.JSONField(blank=True, db_default={}, default=dict)),
    ]
