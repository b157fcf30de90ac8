"""The types of a JSON body: REST framework takes "1" for a number, 0 for false and 7 for a text; the API does not.

The description says `integer`, `boolean`, `string`: a program that sends something else has a mistake, and hears of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from marketplace.accounts.errors import InvalidInput

_TEXTS = (serializers.CharField, serializers.UUIDField, serializers.DateTimeField, serializers.DateField)


def require_types(field: serializers.Field, value: Any, path: str = "") -> None:
    """Raise InvalidInput, which names the place, where `value` or a part of it is of another type than `field` says.

    Fields that are absent, null or unknown are left to the serializer.
    """
    if value is None or isinstance(field, serializers.ModelField):
        return
    if isinstance(field, serializers.ListSerializer | serializers.ListField):
        if not isinstance(value, list):
            raise _wrong("a list", path)
        for index, item in enumerate(value):
            require_types(field.child, item, f"{path}.{index}".lstrip("."))
    elif isinstance(field, serializers.Serializer):
        if not isinstance(value, Mapping):
            raise _wrong("an object", path)
        for name, inner in field.fields.items():
            if name in value and not inner.read_only:
                require_types(inner, value[name], f"{path}.{name}".lstrip("."))
    elif not _fits(field, value):
        raise _wrong(_name_of(field), path)


def _fits(field: serializers.Field, value: Any) -> bool:
    if isinstance(field, serializers.BooleanField):
        return isinstance(value, bool)
    if isinstance(field, serializers.IntegerField):
        return not isinstance(value, bool) and (isinstance(value, int) or _is_whole(value))
    if isinstance(field, serializers.FloatField):
        return not isinstance(value, bool) and isinstance(value, int | float)
    if isinstance(field, _TEXTS) or (isinstance(field, serializers.ChoiceField) and _of_texts(field)):
        return isinstance(value, str)
    return True


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()  # 1.0 is an integer of JSON Schema


def _of_texts(field: serializers.ChoiceField) -> bool:
    return all(isinstance(choice, str) for choice in field.choices)


def _name_of(field: serializers.Field) -> str:
    if isinstance(field, serializers.BooleanField):
        return "true or false"
    if isinstance(field, serializers.IntegerField):
        return "a whole number"
    return "a number" if isinstance(field, serializers.FloatField) else "a text"


def _wrong(wanted: str, path: str) -> InvalidInput:
    return InvalidInput(f"must be {wanted}", field=path)
