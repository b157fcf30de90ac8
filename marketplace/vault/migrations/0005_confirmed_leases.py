"""A lease says whether its replica confirmed that key and weights are gone."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("vault", "0004_enrolled_replicas")]
    operations = [migrations.AddField("lease", "confirmed_at", models.DateTimeField(blank=True, null=True))]
