"""A session is found by its digest at every heartbeat."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("vault", "0001_initial")]
    operations = [
        migrations.AlterField("replica", "session_digest", models.BinaryField(db_index=True, max_length=32)),
    ]
