"""Staff allow replicas by name; a replica trades a credential for its identity; keys are released on demand."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0002_initial"), ("vault", "0003_append_only_release_log")]

    operations = [
        migrations.AddField(
            "replicachallenge", "name", models.CharField(default="", max_length=100), preserve_default=False
        ),
        migrations.CreateModel(
            name="EnrolledReplica",
            fields=[
                ("name", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("host", models.CharField(max_length=200)),
                ("builds", models.JSONField(default=list)),
                ("releases_per_hour", models.PositiveIntegerField()),
                ("credential_digest", models.BinaryField(max_length=32)),
                ("credential_expires_at", models.DateTimeField()),
                ("identity_public_key", models.BinaryField(max_length=32, null=True)),
                ("issued_at", models.DateTimeField(auto_now_add=True)),
                ("enrolled_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="catalog.basemodel"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ReleaseOrder",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64)),
                ("kind", models.CharField(choices=[("verify", "Verify"), ("prefetch", "Prefetch")], max_length=8)),
                ("expires_at", models.DateTimeField(db_index=True)),
                (
                    "replica",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="vault.replica"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("replica", "digest", "kind"), name="release_order_unique")
                ],
            },
        ),
    ]
