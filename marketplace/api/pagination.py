"""Cursor pagination, newest first: pages stay right while rows are added, and cost the same at any depth."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from marketplace.accounts.errors import InvalidInput

_LONGEST_NUMBER = 9  # digits


class CreatedCursorPagination(CursorPagination):
    """`?cursor=…&limit=…` → `{"next", "previous", "results"}`."""

    ordering: tuple[str, ...] = ("-created_at", "-id")
    page_size_query_param = "limit"
    page_size_query_description = "how many, at most 200"
    max_page_size = 200
    cursor_query_description = "of `next` or `previous` of another page"

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        """Return the rows of a page. Raises InvalidInput for a limit or a cursor that nobody handed out."""
        try:
            found: list[Any] | None = super().paginate_queryset(queryset, request, view)
        except (NotFound, ValidationError, ValueError, DataError):  # the cursor is no cursor, or its position no value
            raise InvalidInput("is not a cursor of this list", field="cursor") from None
        return found

    def get_page_size(self, request: Request) -> int:
        """Return the number of rows of a page; a larger one than `max_page_size` is cut to it."""
        limit = request.query_params.get(self.page_size_query_param)
        if limit is None:
            return int(self.page_size)
        if not limit.isascii() or not limit.isdigit() or int(limit[:_LONGEST_NUMBER]) == 0:
            raise InvalidInput("must be a whole number, 1 or more", field="limit")
        return min(int(limit[:_LONGEST_NUMBER]), self.max_page_size)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Return both parameters, with the bound of the limit."""
        cursor, limit = super().get_schema_operation_parameters(view)
        return [cursor, {**limit, "schema": {"type": "integer", "minimum": 1}}]
