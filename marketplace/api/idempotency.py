"""`Idempotency-Key` where money moves: the key becomes the id of what is made, so a retry finds it again."""

from __future__ import annotations

from uuid import UUID, uuid4, uuid5

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from marketplace.accounts.errors import InvalidInput, Refusal
from marketplace.accounts.models import Organization

HEADER = "Idempotency-Key"
MAX_LENGTH = 255
IDEMPOTENCY_KEY = OpenApiParameter(
    HEADER,
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description=f"up to {MAX_LENGTH} printable ASCII characters: a retry with the same key does nothing twice",
)


def id_for(request: Request, organization: Organization, what: str) -> UUID:
    """Return the id that the request's key stands for in the organization, or a new one without a key.

    `what` keeps apart what different operations make. Raises InvalidInput.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return uuid4()
    if not 0 < len(key) <= MAX_LENGTH or not key.isascii() or not key.isprintable():
        raise InvalidInput(f"must be 1 to {MAX_LENGTH} printable ASCII characters", field=HEADER)
    return uuid5(organization.pk, f"{what}\0{key}")


def key_reused() -> Refusal:
    """Return the refusal of a key that came before with another body."""
    message = "this Idempotency-Key was used with another body; use a new key"
    return Refusal(message, code="idempotency_key_reused", status=422, field=HEADER)
