"""Seals of rows of other packages' models, in a table of their own: `protect` has such a model sealed and checked.

The seal names its row, so it is good for no other. It goes with its row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.db import models, transaction
from django.db.models.signals import post_delete

from marketplace.accounts.seals.macs import require_seal, seal_of
from marketplace.accounts.seals.rows import column_of, values_of

PROTECTED: dict[type[models.Model], tuple[str, ...]] = {}


def protect(model: type[models.Model], *columns: str) -> None:
    """Have each row of `model` sealed over its primary key and `columns` as it is saved, and checked as it is loaded.

    `update` and `bulk_create` of the model do not seal: rows that they wrote cannot be loaded.
    """
    if model in PROTECTED:
        return
    PROTECTED[model] = columns
    save, load = model.save, model.from_db.__func__  # type: ignore[attr-defined]

    def sealing_save(row: Any, *args: Any, **kwargs: Any) -> None:
        names = kwargs.get("update_fields")
        if names is not None and not {column_of(model, name) for name in names} & set(columns):
            save(row, *args, **kwargs)
            return
        with transaction.atomic():
            save(row, *args, **kwargs)
            seal_beside(row, columns)

    def checking_load(cls: type[models.Model], db: str | None, names: Iterable[str], values: Iterable[Any]) -> Any:
        row = load(cls, db, names, values)
        require_seal_beside(row, columns)
        return row

    model.save = sealing_save  # type: ignore[method-assign,assignment]
    model.from_db = classmethod(checking_load)  # type: ignore[method-assign,assignment]
    post_delete.connect(_forget, sender=model, dispatch_uid=f"seal of {model._meta.db_table}")


def seal_beside(row: models.Model, columns: tuple[str, ...]) -> None:
    """Write the seal of a saved row."""
    table, fields, values = _sealed(row, columns)
    defaults = {"seal": seal_of(table, fields, values)}
    _seals().update_or_create(table=table, row_id=str(row.pk), defaults=defaults)


def require_seal_beside(row: models.Model, columns: tuple[str, ...]) -> None:
    """Raise SealBroken unless the row has its seal."""
    table, fields, values = _sealed(row, columns)
    found = _seals().filter(table=table, row_id=str(row.pk)).values_list("seal", flat=True).first()
    require_seal(table, fields, values, found)


def _sealed(row: models.Model, columns: tuple[str, ...]) -> tuple[str, tuple[str, ...], list[Any]]:
    fields = (row._meta.pk.attname, *columns)  # type: ignore[union-attr]
    return row._meta.db_table, fields, values_of(row, fields)


def _forget(instance: models.Model, **_: Any) -> None:
    _seals().filter(table=instance._meta.db_table, row_id=str(instance.pk)).delete()


def _seals() -> Any:
    return apps.get_model("accounts", "RowSeal").objects
