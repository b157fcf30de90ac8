"""Search by spelling and meaning beside words: the words that listings use, for trigrams; passages, for vectors."""

from importlib import import_module
from pathlib import Path

import django.db.models.deletion
from django.contrib.postgres.indexes import GinIndex
from django.db import migrations, models

SQL = Path(__file__).with_name("sql") / "0011_search.sql"
BEFORE = import_module("marketplace.catalog.migrations.0006_search")
FORGET = """
DROP TRIGGER catalog_version_found ON catalog_version;
DROP TRIGGER catalog_versions_found ON catalog_version;
DROP FUNCTION catalog_version_found(), catalog_versions_found();
"""


class Migration(migrations.Migration):
    """The extensions are there: `migrate` makes them first (marketplace/config/extensions.py)."""

    dependencies = [("accounts", "0003_referrals"), ("catalog", "0010_standing")]

    operations = [
        migrations.RunSQL(migrations.RunSQL.noop, BEFORE.KEEP),  # on the way back, after the columns have gone
        migrations.AddField("searchtext", "listed", models.BooleanField(default=False)),
        migrations.AddField("searchtext", "text_digest", models.CharField(default="", max_length=32)),
        migrations.AddField("searchtext", "passages_of", models.CharField(default="", max_length=80)),
        # Without lists of what is still to be sorted in: every search would read them from end to end.
        migrations.RemoveIndex("searchtext", "catalog_search_words"),
        migrations.RemoveIndex("searchtext", "catalog_search_beginnings"),
        migrations.AddIndex("searchtext", GinIndex(fastupdate=False, fields=["words"], name="catalog_search_words")),
        migrations.AddIndex(
            "searchtext", GinIndex(fastupdate=False, fields=["beginnings"], name="catalog_search_beginnings")
        ),
        migrations.CreateModel(
            name="Spelling",
            fields=[("word", models.CharField(max_length=40, primary_key=True, serialize=False))],
            options={
                "indexes": [
                    GinIndex(
                        fastupdate=False,
                        fields=["word"],
                        name="catalog_spelling_trigrams",
                        opclasses=["extensions.gin_trgm_ops"],
                    )
                ],
            },
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
