"""Former names of organizations, the address of a logo, seals of the audit log."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0006_require_second_factor"),
    ]

    operations = [
        migrations.CreateModel(
            name="AuditSeal",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("day", models.DateField()),
                ("entries", models.PositiveIntegerField()),
                ("digest", models.BinaryField(max_length=32)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="FormerName",
            fields=[
                (
                    "slug",
                    models.CharField(
                        max_length=40,
                        primary_key=True,
                        serialize=False,
                        validators=[
                            django.core.validators.RegexValidator(
                                "\\A[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\\Z",
                                "1 to 40 lower-case letters, digits and inner hyphens",
                            )
                        ],
                    ),
                ),
                ("given_up_at", models.DateTimeField(auto_now_add=True)),
                ("kept_until", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="organization",
            name="logo",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["created_at"], name="audit_by_day"),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(
                condition=models.Q(("as_staff", True)), fields=["-created_at", "-id"], name="audit_staff_newest_first"
            ),
        ),
        migrations.AddField(
            model_name="auditseal",
            name="organization",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="audit_seals",
                to="accounts.organization",
            ),
        ),
        migrations.AddField(
            model_name="formername",
            name="organization",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="former_names",
                to="accounts.organization",
            ),
        ),
        migrations.AddConstraint(
            model_name="auditseal",
            constraint=models.UniqueConstraint(
                fields=("organization", "day"), name="audit_seal_once_a_day", nulls_distinct=False
            ),
        ),
        migrations.AlterField(
            model_name="auditentry",
            name="organization",
            field=models.ForeignKey(
                db_constraint=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="audit_entries",
                to="accounts.organization",
            ),
        ),
    ]
