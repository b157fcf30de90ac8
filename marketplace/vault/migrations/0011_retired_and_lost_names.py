from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("vault", "0010_leases_by_session"),
    ]

    operations = [
        migrations.AddField(
            model_name="replica",
            name="retired_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="replica",
            name="lost_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        # Nobody is told now of boots that went away before anybody watched.
        migrations.RunSQL("UPDATE vault_replica SET lost_at = now() WHERE gone_at IS NOT NULL", migrations.RunSQL.noop),
        migrations.AddIndex(
            model_name="replica",
            index=models.Index(fields=["name", "-registered_at"], name="vault_replica_newest_boot"),
        ),
    ]
