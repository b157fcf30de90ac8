"""Reviews, their audit, strikes, reports, and the sketches of weights. The audit is append-only."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

FORBID = """
CREATE FUNCTION publishing_act_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit of reviews is append-only' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER publishing_act_append_only BEFORE UPDATE OR DELETE ON publishing_act
    FOR EACH ROW EXECUTE FUNCTION publishing_act_is_append_only();
"""
ALLOW = """
DROP TRIGGER publishing_act_append_only ON publishing_act;
DROP FUNCTION publishing_act_is_append_only();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0003_referrals"),
        ("catalog", "0008_in_review"),
    ]

    operations = [
        migrations.CreateModel(
            name="Review",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("version", "Version"), ("listing", "Listing"), ("reports", "Reports")], max_length=8
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("approved", "Approved"),
                            ("refused", "Refused"),
                            ("withdrawn", "Withdrawn"),
                        ],
                        default="open",
                        max_length=9,
                    ),
                ),
                (
                    "reasons",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
                                ("no_record", "No Record"),
                                ("strike", "Strike"),
                                ("finding", "Finding"),
                                ("reports", "Reports"),
                            ],
                            max_length=9,
                        ),
                        size=None,
                    ),
                ),
                ("findings", models.JSONField(default=list)),
                ("change", models.JSONField(default=dict)),
                (
                    "taken_off",
                    django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), default=list, size=None),
                ),
                ("opened_at", models.DateTimeField()),
                ("due_at", models.DateTimeField()),
                ("appeal", models.TextField(blank=True, max_length=1000)),
                ("appealed_at", models.DateTimeField(blank=True, null=True)),
                ("decision", models.TextField(blank=True, max_length=1000)),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="reviews", to="catalog.model"
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="reviews",
                        to="catalog.version",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Sketch",
            fields=[
                (
                    "version",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        serialize=False,
                        to="catalog.version",
                    ),
                ),
                ("values", models.BinaryField(max_length=256)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="Report",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("copy", "It copies another model"),
                            ("impersonation", "It pretends to be somebody else's"),
                            ("harmful", "Its answers or its card do harm"),
                            ("misleading", "It is not what its page says"),
                            ("other", "Something else"),
                        ],
                        max_length=13,
                    ),
                ),
                ("text", models.TextField(blank=True, max_length=1000)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="reports", to="catalog.model"
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="reports", to="accounts.organization"
                    ),
                ),
                (
                    "review",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="reports",
                        to="publishing.review",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Act",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("opened", "Opened"),
                            ("approved", "Approved"),
                            ("refused", "Refused"),
                            ("struck", "Struck"),
                            ("unstruck", "Unstruck"),
                            ("appealed", "Appealed"),
                            ("withdrawn", "Withdrawn"),
                            ("pulled", "Pulled"),
                        ],
                        max_length=9,
                    ),
                ),
                ("by", models.UUIDField(blank=True, null=True)),
                ("reason", models.TextField(blank=True, max_length=1000)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "review",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="acts", to="publishing.review"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Strike",
            fields=[
                (
                    "review",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        serialize=False,
                        to="publishing.review",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("lifted_at", models.DateTimeField(blank=True, null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="strikes", to="accounts.organization"
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="review",
            index=models.Index(condition=models.Q(("state", "open")), fields=["due_at"], name="review_queue"),
        ),
        migrations.AddConstraint(
            model_name="review",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "open")),
                fields=("model", "kind", "version"),
                name="review_open_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="review",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "version"), ("version__isnull", False)),
                    models.Q(("kind", "version"), _negated=True),
                    _connector="OR",
                ),
                name="review_of_a_version_names_it",
            ),
        ),
        migrations.AddConstraint(
            model_name="report",
            constraint=models.UniqueConstraint(fields=("model", "organization"), name="report_once"),
        ),
        migrations.RunSQL(FORBID, ALLOW),
    ]
