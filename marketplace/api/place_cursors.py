"""Cursors of lists of sums: the place of a page's last row, as opaque text, in the address of the next page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from billing.rollups.places import Place
from marketplace.accounts.errors import InvalidInput
from protocol.encoding import decode_base64url, encode_base64url
from protocol.errors import ProtocolError

MAX_LENGTH = 2_048  # characters


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    order: str  # names the list and its groups: a cursor of other groups has no place among these
    places: tuple[Place | None, ...]


class _Placed(Protocol):
    @property
    def place(self) -> Place: ...


Row = TypeVar("Row", bound=_Placed)


def places_in(cursor: str | None, order: str, *, lists: int = 1) -> tuple[Place | None, ...]:
    """Return the place behind which each of an answer's `lists` begins: None is the beginning.

    Raises InvalidInput for a cursor that is not of this order.
    """
    if cursor is None:
        return (None,) * lists
    try:
        found = msgspec.json.decode(decode_base64url(cursor), type=_Cursor)
    except (ProtocolError, msgspec.MsgspecError):
        raise _refused() from None
    names = [place.name for place in found.places if place is not None]
    if found.order != order or len(found.places) != lists or any("\0" in name for name in names):
        raise _refused()
    return found.places


def cut(rows: Sequence[Row], limit: int, before: Place | None = None) -> tuple[Sequence[Row], Place | None, bool]:
    """Return at most `limit` rows, the place of the last one (`before` if there is none), and whether more follow."""
    shown = rows[:limit]
    return shown, shown[-1].place if shown else before, len(rows) > limit


def address_behind(request: Request, order: str, *places: Place | None) -> str:
    """Return the address of this list behind these places."""
    cursor = encode_base64url(msgspec.json.encode(_Cursor(order, places)))
    return str(replace_query_param(request.build_absolute_uri(), "cursor", cursor))


def _refused() -> InvalidInput:
    return InvalidInput("is not a cursor of this list", field="cursor")
