"""Search by spelling and meaning beside words: names for trigrams, passages for vectors, whether a model is listed."""

from importlib import import_module
from pathlib import Path

import django.contrib.postgres.indexes
import django.db.models.deletion
from django.db import migrations, models

SQL = Path(__file__).with_name("sql") / "0012_search.sql"
BEFORE = import_module("marketplace.catalog.migrations.0006_search")
FORGET = """
DROP TRIGGER catalog_version_findable ON catalog_version;
DROP TRIGGER catalog_version_found_first ON catalog_version;
DROP FUNCTION catalog_version_findable();
"""


class Migration(migrations.Migration):
    """The extensions are there: `migrate` makes them first (marketplace/config/extensions.py)."""

    dependencies = [("accounts", "0003_referrals"), ("catalog", "0010_standing")]

    operations = [
        migrations.RunSQL(migrations.RunSQL.noop, BEFORE.KEEP),  # on the way back, after the columns have gone
        migrations.AddField("searchtext", "names", models.TextField(default="")),
        migrations.AddField("searchtext", "listed", models.BooleanField(default=False)),
        migrations.AddField("searchtext", "text_digest", models.CharField(default="", max_length=32)),
        migrations.AddField("searchtext", "passages_of", models.CharField(default="", max_length=80)),
        migrations.AddIndex(
            "searchtext",
            django.contrib.postgres.indexes.GinIndex(
                fields=["names"], name="catalog_search_names", opclasses=["extensions.gin_trgm_ops"]
            ),
        ),
        migrations.CreateModel(
            name="Passage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("place", models.PositiveSmallIntegerField()),
                (
                    "model",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="passages",
                        to="catalog.model",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("model", "place"), name="passage_place_unique")],
            },
        ),
        migrations.RunSQL(SQL.read_text(), FORGET + BEFORE.FORGET),
    ]
