"""Cards of models, as the landing page and the catalogue show them."""

from __future__ import annotations

from typing import Any

from marketplace.catalog import selectors
from marketplace.catalog.models import Evaluation, Model
from marketplace.web.charts import AccuracyBar
from marketplace.web.standing import picture_of

SHELF = 3  # new models on a page of others


def accuracy_bar(evaluation: Evaluation, *, older: bool = False) -> AccuracyBar:
    """Return the picture of a figure."""
    return AccuracyBar(evaluation.rows, evaluation.correct, evaluation.base_correct, older)


def card_of(model: Model, query: str = "") -> dict[str, Any]:
    """Return the card of a model. A word of the query is marked where words found it."""
    facts = model.facts
    accuracy = accuracy_bar(facts.evaluation) if facts.evaluation else None
    return {
        "model": model,
        "price": facts.price,
        "version": facts.newest,
        "accuracy": accuracy,
        "standing": picture_of(model),
        "marked": "" if getattr(model, "found_by_meaning", False) else query,
    }


def shelf_beside(shown: list[Model]) -> list[dict[str, Any]]:
    """Return the cards of the new models that have their turn and are not on the page anyway."""
    there = {model.pk for model in shown}
    return [card_of(model) for model in selectors.new_models(limit=SHELF) if model.pk not in there]
