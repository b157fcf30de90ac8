"""The policy of a model about personal data in requests."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column with a constant default: no table is rewritten."""

    dependencies: ClassVar = [("catalog", "0011_hybrid_search")]

    operations: ClassVar = [
        migrations.AddField("model", "guards", models.JSONField(blank=True, db_default={}, default=dict)),
    ]
