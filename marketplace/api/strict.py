"""What a request says, by its name and its type: REST framework ignores names that it does not know, and takes "1" for
a number, 0 for false and 7 for a text; the API does not.

The description names each field and parameter, and its type: a program that sends something else has a mistake, and
hears of it. A limit under a wrong name would limit nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.views import APIView

from marketplace.accounts.errors import InvalidInput

_TEXTS = (serializers.CharField, serializers.UUIDField, serializers.DateTimeField, serializers.DateField)


def require_known(view: APIView, request: Request) -> None:
    """Raise InvalidInput for a parameter of the query, or a name in a JSON body, that an operation does not describe.

    What is inside a named part is judged as it is parsed (`require_shape`).
    """
    method = "GET" if request.method == "HEAD" else str(request.method)
    handler = getattr(view, method.lower(), None)
    described = getattr(handler, "kwargs", {}).get("schema")
    if described is None:
        return
    schema = described()
    schema.view, schema.method = view, method
    require_names(request.query_params, _parameters(view, schema, method))
    if method != "GET" and request.content_type.lower().startswith("application/json"):
        shapes = _bodies(None if method == "DELETE" else schema.get_request_serializer())
        if shapes is not None and isinstance(request.data, Mapping):
            known = [name for shape in shapes for name, field in shape.fields.items() if not field.read_only]
            require_names(request.data, known, nearest=[place for shape in shapes for place in _places(shape, "")])


def require_names(
    given: Collection[str], known: Collection[str], *, nearest: Collection[str] = (), at: str = ""
) -> None:
    """Raise InvalidInput for the first given name that is not known, naming the one that may have been meant.

    nearest: further names that may have been meant, which stand elsewhere in the body; at: the place of the names
    """
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return
    path = f"{at}.{unknown}".lstrip(".")
    places: dict[str, str] = {}
    for place in (*(f"{at}.{name}".lstrip(".") for name in known), *nearest):
        places.setdefault(place.rpartition(".")[2], place)
    found = get_close_matches(unknown, places, n=1, cutoff=0.5)
    hint = f"; did you mean {places[found[0]]}?" if found else ""
    raise InvalidInput(f"is not known here{hint}", code="unknown_field", field=path[:200])


def _bodies(described: Any) -> list[serializers.Serializer] | None:
    """Return the shapes that a JSON body may have, none for an operation that takes no body; None if it is no JSON."""
    if described is None:
        return []
    if isinstance(described, PolymorphicProxySerializer):
        return [shape() for shape in described.serializers]
    return [described()] if isinstance(described, type) else None


def _parameters(view: APIView, schema: Any, method: str) -> set[str]:
    """Return the names of the parameters of a query that an operation describes, those of pages too."""
    names = {"cursor", "limit"} if method == "GET" else set()
    for one in schema.get_override_parameters():
        if isinstance(one, OpenApiParameter):
            names |= {one.name} if one.location == OpenApiParameter.QUERY else set()
        else:
            names |= set(one().fields)
    return names


def require_shape(field: serializers.Field, value: Any) -> None:
    """Raise InvalidInput, which names the place, where a body has a name that `field` does not know, or where a part of
    it is of another type than `field` says. Fields that are absent or null are left to the serializer."""
    _require_shape(field, value, "", list(_places(field, "")))


def _places(field: serializers.Field, path: str) -> Iterator[str]:
    """Yield the path of every field in `field` that a body may have."""
    if isinstance(field, serializers.Serializer):
        for name, inner in field.fields.items():
            if not inner.read_only:
                yield f"{path}.{name}".lstrip(".")
                yield from _places(inner, f"{path}.{name}".lstrip("."))


def _require_shape(field: serializers.Field, value: Any, path: str, places: list[str]) -> None:
    if value is None or isinstance(field, serializers.ModelField):
        return
    if isinstance(field, serializers.ListSerializer | serializers.ListField):
        if not isinstance(value, list):
            raise _wrong("a list", path)
        for index, item in enumerate(value):
            _require_shape(field.child, item, f"{path}.{index}".lstrip("."), places)
    elif isinstance(field, serializers.Serializer):
        if not isinstance(value, Mapping):
            raise _wrong("an object", path)
        taken = {name: inner for name, inner in field.fields.items() if not inner.read_only}
        require_names(value, taken, nearest=places, at=path)
        for name in value:
            _require_shape(taken[name], value[name], f"{path}.{name}".lstrip("."), places)
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
