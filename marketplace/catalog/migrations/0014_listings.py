"""Licence, gating and logo of a listing; the figures of a standing that filters of the catalogue read."""

from importlib import import_module
from pathlib import Path

import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

SQL = Path(__file__).with_name("sql") / "0014_filters.sql"
BEFORE: str = import_module("marketplace.catalog.migrations.0010_standing").KEEP
FORGET = """
DROP TRIGGER catalog_price_set ON catalog_price;
DROP TRIGGER catalog_version_measured ON catalog_evaluation;
DROP FUNCTION catalog_price_set(), catalog_version_measured();
DROP TRIGGER catalog_model_shown ON catalog_model;
CREATE TRIGGER catalog_model_shown AFTER UPDATE OF visibility ON catalog_model
    FOR EACH ROW WHEN (OLD.visibility <> NEW.visibility) EXECUTE FUNCTION catalog_model_shown();
""" + BEFORE[: BEFORE.index("$$;") + 3].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_audit"),
        ("catalog", "0013_versions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Logo",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64)),
                ("image", models.BinaryField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.AddField(
            model_name="model",
            name="gated",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="model",
            name="licence",
            field=models.CharField(blank=True, db_default="", default="", max_length=40),
        ),
        migrations.AddField(
            model_name="model",
            name="licence_required",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="model",
            name="licence_text",
            field=models.TextField(blank=True, db_default="", default="", max_length=20000),
        ),
        migrations.AddField(
            model_name="model",
            name="logo",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        migrations.AddField(
            model_name="standing",
            name="accuracy_bps",
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="standing",
            name="call_nano_usd",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="standing",
            name="output_micro_usd_per_mtok",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="standing",
            name="ttft_p95_ms",
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddIndex(
            model_name="model",
            index=models.Index(fields=["licence"], name="catalog_model_licence"),
        ),
        migrations.AddIndex(
            model_name="model",
            index=django.contrib.postgres.indexes.GinIndex(
                fastupdate=False, fields=["tags"], name="catalog_model_tags"
            ),
        ),
        migrations.AddField(
            model_name="logo",
            name="model",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="logos", to="catalog.model"
            ),
        ),
        migrations.AddConstraint(
            model_name="logo",
            constraint=models.UniqueConstraint(fields=("model", "digest"), name="logo_once"),
        ),
        migrations.RunSQL(SQL.read_text(), FORGET),
    ]
