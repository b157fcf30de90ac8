"""Answers of the double, checked against the classes of the client library, so that the double cannot invent a shape.

A field that the class of the object does not have, a value of another type, and the absence of a field that is always
there are errors of the double itself: they are raised, and no client sees the answer.
"""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any, Literal, Union, get_args, get_origin

import stripe
from stripe._object_classes import OBJECT_CLASSES
from typing_extensions import get_type_hints

from devstack.stripe_double.messages import JsonObject

# The class of an event names its object by `data.object`, whose class depends on the event: it is checked on its own.
_FREE = (Any, object, dict)


class WrongAnswer(Exception):
    """The double was about to answer with an object that Stripe's own client library does not describe."""


def check(value: Any, path: str = "") -> None:
    """Check an answer and every object in it. Raises WrongAnswer, with the path of the first fault."""
    if isinstance(value, dict):
        kind = value.get("object")
        if isinstance(kind, str) and kind in OBJECT_CLASSES and not value.get("deleted"):
            _check_object(_class_of(kind), value, f"{path}{kind}")
        for name, inner in value.items():
            check(inner, f"{path}{name}.")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            check(inner, f"{path}{number}.")


@functools.cache
def _class_of(kind: str) -> type:
    module, name = OBJECT_CLASSES[kind]
    found: type = getattr(importlib.import_module(module), name)
    return found


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, localns=_Names(vars(stripe)))
    return {name: hint for name, hint in hints.items() if name != "OBJECT_NAME" and name[0] != "_"}


class _Names(dict[str, Any]):
    """The classes by their names; a name that the library imports for type checkers alone stands for any object."""

    def __missing__(self, name: str) -> Any:
        return Any


def _check_object(kind: type, value: JsonObject, path: str) -> None:
    fields = _fields(kind)
    unknown = set(value) - set(fields) - {"object"}
    if unknown:
        raise WrongAnswer(f"{path}: {', '.join(sorted(unknown))} is not a field of {kind.__qualname__}")
    absent = {name for name, hint in fields.items() if not _may_be_absent(hint)} - set(value)
    if absent:
        raise WrongAnswer(f"{path}: {', '.join(sorted(absent))} is always there in {kind.__qualname__}")
    for name, inner in value.items():
        if not _fits(fields.get(name, str), inner, f"{path}.{name}"):
            raise WrongAnswer(f"{path}.{name}: {inner!r:.60} is no {fields.get(name, str)}")


def _may_be_absent(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


def _fits(hint: Any, value: Any, path: str) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(choice, value, path) for choice in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(_fits(get_args(hint)[0], item, path) for item in value)
    if origin in (dict, tuple) or hint in _FREE:
        return True
    if origin is not None:  # a list object, or metadata: their contents are objects or free
        return isinstance(value, dict)
    if hint is type(None):
        return value is None
    if isinstance(hint, type) and issubclass(hint, stripe.StripeObject):
        return _fits_object(hint, value, path)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _fits_object(kind: type, value: Any, path: str) -> bool:
    if not isinstance(value, dict):
        return False
    if "object" not in value and kind.__annotations__:  # objects with a name are checked by `check`
        _check_object(kind, value, path)
    return True
