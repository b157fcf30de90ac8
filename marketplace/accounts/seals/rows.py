"""Models whose rows carry authority: sealed as they are saved, checked as they are loaded.

A model names its sealed fields once, as columns, in `SEALED`. Every way to write them through the ORM seals the row,
and every way to load one checks it, so no caller can forget: a row that the platform did not write cannot be loaded.
Statements past the ORM read the same columns and call `require_seal`. What a statement alone decides (`exists`,
`values`) is no authority.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Self

from django.db import models, transaction

from marketplace.accounts.seals.locks import lock_sealed
from marketplace.accounts.seals.macs import require_seal, seal_of

SEAL = "seal"


class SealedQuerySet(models.QuerySet[Any]):
    """A queryset whose writes seal what they change."""

    def update(self, **values: Any) -> int:
        """Change all rows; where a sealed field is among `values`, each row is locked, checked and sealed anew."""
        touched = {name: value for name, value in values.items() if column_of(self.model, name) in self.model.SEALED}
        if not touched:
            return super().update(**values)
        if unknown := sorted(name for name, value in touched.items() if hasattr(value, "resolve_expression")):
            raise TypeError(f"sealed fields are updated with values, not with expressions: {', '.join(unknown)}")
        with transaction.atomic(using=self.db):
            rows = lock_sealed(self.using(self.db))
            for row in rows:
                for name, value in touched.items():
                    setattr(row, name, value)
                one: models.QuerySet[Any] = models.QuerySet(self.model, using=self.db).filter(pk=row.pk)
                one.update(**values, **{SEAL: row.sealed()})
        return len(rows)

    update.alters_data = True  # type: ignore[attr-defined]

    def only(self, *fields: Any) -> Self:
        """Load rows whole all the same: a part of a row cannot be checked."""
        return self.all()

    def defer(self, *fields: Any) -> Self:
        """As `only`."""
        return self.all()

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Seal the rows, then create them."""
        rows = list(objs)
        for row in rows:
            row.seal = row.sealed()
        return super().bulk_create(rows, *args, **kwargs)

    def bulk_update(self, objs: Iterable[Any], fields: Iterable[str], *args: Any, **kwargs: Any) -> int:
        """Change fields that no seal covers. Raises TypeError for others."""
        names = list(fields)
        if {column_of(self.model, name) for name in names} & {*self.model.SEALED, SEAL}:
            raise TypeError("sealed fields are changed by update() or save()")
        return super().bulk_update(objs, names, *args, **kwargs)


class SealedModel(models.Model):
    """Base of models with sealed fields."""

    SEALED: ClassVar[tuple[str, ...]] = ()  # columns, in the order in which they are sealed

    # Without a value a row is not sealed, and counts for nothing.
    seal = models.BinaryField(max_length=32, editable=False, db_default=b"")

    objects = SealedQuerySet.as_manager()

    class Meta:
        abstract = True
        base_manager_name = "objects"  # rows that a deletion elsewhere changes (SET_NULL) are sealed too

    def sealed(self) -> bytes:
        """Return the seal of the row as it is in memory."""
        return seal_of(self._meta.db_table, self.SEALED, self._sealed_values())

    @classmethod
    def sealed_row(cls, row: Sequence[Any]) -> dict[str, Any]:
        """Check a row that a statement past the ORM read: its sealed columns in order, then the seal.

        Returns the columns by name. Raises SealBroken.
        """
        *values, seal = row
        require_seal(cls._meta.db_table, cls.SEALED, values, seal)
        return dict(zip(cls.SEALED, values, strict=True))

    def _sealed_values(self) -> Sequence[Any]:
        return values_of(self, self.SEALED)

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any], **options: Any) -> Self:
        """Load a row. Raises SealBroken unless it is sealed."""
        row = super().from_db(db, field_names, values, **options)
        if missing := row.get_deferred_fields() & {*cls.SEALED, SEAL}:
            raise TypeError(f"a sealed row is loaded whole: {', '.join(sorted(missing))} would be missing")
        require_seal(cls._meta.db_table, cls.SEALED, row._sealed_values(), row.seal)
        return row

    def refresh_from_db(self, using: str | None = None, fields: Any = None, from_queryset: Any = None) -> None:
        """Load the row again, always whole."""
        super().refresh_from_db(using=using, from_queryset=from_queryset)

    def save(self, *args: Any, update_fields: Iterable[str] | None = None, **kwargs: Any) -> None:
        """Seal the row and save it.

        With `update_fields` the others are taken as they are in the database, under a lock: somebody may have changed
        them since this object was loaded. Raises SealBroken if that row is not sealed.
        """
        if update_fields is None or self._state.adding:
            self.seal = self.sealed()
            super().save(*args, update_fields=update_fields, **kwargs)
            return
        names = list(update_fields)
        changed = {column_of(type(self), name) for name in names} & set(self.SEALED)
        if not changed:
            super().save(*args, update_fields=names, **kwargs)
            return
        with transaction.atomic(using=kwargs.get("using") or self._state.db):
            [stored] = lock_sealed(type(self)._base_manager.using(self._state.db).filter(pk=self.pk))
            for column in changed:
                setattr(stored, column, getattr(self, column))
            self.seal = stored.sealed()
            super().save(*args, update_fields=[*names, SEAL], **kwargs)


def column_of(model: type[models.Model], name: str) -> str:
    """Return the column of a field that is named as in the model."""
    return str(model._meta.pk.attname if name == "pk" else model._meta.get_field(name).attname)  # type: ignore[union-attr]


def values_of(row: models.Model, columns: Iterable[str]) -> list[Any]:
    """Return a row's values as the database gives them back: an id that was set as text is an id."""
    found = []
    for column in columns:
        field: Any = row._meta.get_field(column)
        target = field.target_field if field.is_relation else field
        found.append(target.to_python(getattr(row, column)))
    return found
