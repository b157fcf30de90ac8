"""Serializer fields of the API's own."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from protocol.encoding import decode_base64url, encode_base64url
from protocol.errors import ProtocolError
from protocol.names import SLUG_PATTERN


@extend_schema_field({"type": "string", "contentEncoding": "base64url"})
class Base64UrlField(serializers.CharField):
    """Bytes as URL-safe base64 without padding."""

    def to_internal_value(self, data: object) -> bytes:
        """Decode; raises ValidationError for anything else than canonical base64url."""
        text = super().to_internal_value(data)
        try:
            return decode_base64url(text)
        except ProtocolError:
            raise serializers.ValidationError("must be URL-safe base64 without padding", code="invalid") from None

    def to_representation(self, value: bytes | memoryview) -> str:
        """Encode."""
        return encode_base64url(bytes(value))


class SlugField(serializers.RegexField):
    """The name of an organization or a model."""

    def __init__(self, **options: object) -> None:
        super().__init__(
            SLUG_PATTERN,
            max_length=40,
            error_messages={"invalid": "must be 1 to 40 lower-case letters, digits and inner hyphens"},
            **options,
        )
