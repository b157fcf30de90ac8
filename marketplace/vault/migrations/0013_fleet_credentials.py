from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0015_base_lines"),
        ("vault", "0012_role_of_a_replica"),
    ]

    operations = [
        migrations.CreateModel(
            name="FleetCredential",
            fields=[
                ("pool", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("network", models.CharField(max_length=50)),
                ("replicas", models.PositiveIntegerField()),
                ("builds", models.JSONField(default=list)),
                ("releases_per_hour", models.PositiveIntegerField()),
                ("credential_digest", models.BinaryField(max_length=32)),
                ("issued_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "base_model",
                    models.ForeignKey(on_delete=models.deletion.PROTECT, related_name="+", to="catalog.basemodel"),
                ),
            ],
        ),
        migrations.AddField(
            model_name="enrolledreplica",
            name="fleet",
            field=models.ForeignKey(
                null=True, on_delete=models.deletion.PROTECT, related_name="names", to="vault.fleetcredential"
            ),
        ),
    ]
