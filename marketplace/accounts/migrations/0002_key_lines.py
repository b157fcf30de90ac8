"""A key knows the first key of its line of rotations. Rotations of before start lines of their own."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]

    operations = [
        migrations.AddField(
            "apikey",
            "first_key",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.apikey"
            ),
        ),
    ]
