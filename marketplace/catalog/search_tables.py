"""The tables of the search: the words of listings, their spellings, and the places of their passages."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models


class SearchText(models.Model):
    """The words by which a listing is found. Triggers of migration 0011 keep them; `passages_of` is a task's."""

    model = models.OneToOneField(
        "catalog.Model", on_delete=models.CASCADE, primary_key=True, related_name="search_text"
    )
    words = SearchVectorField()  # stems, with weights
    beginnings = SearchVectorField()  # the same as they are written
    listed = models.BooleanField(default=False)  # public, with a published version
    text_digest = models.CharField(max_length=32, default="")  # of what passages are cut from
    passages_of = models.CharField(max_length=80, default="")  # the encoder and text_digest of the stored passages

    class Meta:
        indexes: ClassVar = [
            GinIndex(fastupdate=False, fields=["words"], name="catalog_search_words"),
            GinIndex(fastupdate=False, fields=["beginnings"], name="catalog_search_beginnings"),
        ]


class Spelling(models.Model):
    """A word that some listing uses: what a word with typing errors may have meant. 3 to 40 letters and digits.

    A trigger adds the words of new texts, a task takes out those that no listing uses any more.
    """

    word = models.CharField(max_length=40, primary_key=True)

    class Meta:
        indexes: ClassVar = [
            GinIndex(
                fastupdate=False,
                fields=["word"],
                name="catalog_spelling_trigrams",
                opclasses=["extensions.gin_trgm_ops"],
            )
        ]


class Passage(models.Model):
    """A stretch of a listing's text, as the vector of its meaning; only listed models have any.

    The vector is the column `embedding`, unknown to Django: a database without pgvector has none (`search/vectors.py`).
    """

    model = models.ForeignKey("catalog.Model", on_delete=models.CASCADE, related_name="passages", db_index=False)
    place = models.PositiveSmallIntegerField()  # 0: title and summary; then the card's

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["model", "place"], name="passage_place_unique")]
