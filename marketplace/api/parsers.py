"""Parsers of request bodies: JSON of a bounded size, or raw bytes that the view reads itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser

MAX_JSON_SIZE = 2**20  # bytes; a model card is at most 100,000 characters


class BoundedJSONParser(JSONParser):
    """JSON objects only, and nothing nested so deeply that the parser gives up. ControlView has checked the size."""

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:
        """Return the object; raises ParseError."""
        try:
            value = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("JSON is nested too deeply") from None
        if not isinstance(value, Mapping):
            raise ParseError("the body must be a JSON object")
        return dict(value)


class RawParser(BaseParser):
    """Hands the unread stream on: a chunk of a package is written to disk as it is read."""

    media_type = "application/octet-stream"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> IO[bytes]:
        """Return `stream` itself."""
        return stream
