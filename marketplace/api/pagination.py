"""Cursor pagination, newest first: pages stay right while rows are added, and cost the same at any depth."""

from __future__ import annotations

from rest_framework.pagination import CursorPagination


class CreatedCursorPagination(CursorPagination):
    """`?cursor=…&limit=…` → `{"next", "previous", "results"}`."""

    ordering: tuple[str, ...] = ("-created_at", "-id")
    page_size_query_param = "limit"
    max_page_size = 200
