"""Every exception of a view as a refusal in the one envelope (`marketplace.accounts.envelope`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from marketplace.accounts.envelope import envelope
from marketplace.accounts.errors import NotAllowed, NotFound, Refusal

logger = logging.getLogger(__name__)


def not_found(what: str) -> NotFound:
    """Return the refusal for a thing that is not there, or not the caller's."""
    return NotFound(f"there is no such {what}")


def body_too_large(limit: int) -> Refusal:
    """Return the refusal of a request body over `limit` bytes."""
    return Refusal(f"a request body may have {limit} bytes", code="body_too_large", status=413)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn any exception of a view into the envelope. A fault of the platform is logged and shown without detail."""
    refusal = error if isinstance(error, Refusal) else _refusal_of_framework(error)
    if refusal is None or refusal.status == 500:
        if settings.DEBUG:
            return None
        logger.error("unhandled error in %s", context["request"].path, exc_info=error)
        message = "something broke on our side; nothing was changed, try again"
        refusal = Refusal(message, code="internal_error", status=500)
    _roll_back()
    response = Response(
        envelope(refusal, request_id_of(context["request"])), status=refusal.status, headers=refusal.headers
    )
    # A body that was not read (a refused upload) must not be taken for the next request on this connection.
    if refusal.status == 413:
        response["Connection"] = "close"
    return response


def request_id_of(request: Any) -> str:
    """Return the id that ControlView gave to the request."""
    return str(getattr(request, "request_id", ""))


def _refusal_of_framework(error: Exception) -> Refusal | None:
    """Return what Django or REST framework refuses as a Refusal; None for any other exception."""
    if isinstance(error, Http404):
        return not_found("page")
    if isinstance(error, PermissionDenied):
        return NotAllowed("this is not allowed")
    if isinstance(error, exceptions.ValidationError):
        field, detail = _first_detail(error.detail, "")
        return Refusal(str(detail), code=str(getattr(detail, "code", "invalid")), field=field or None)
    if isinstance(error, exceptions.Throttled):
        wait = math.ceil(error.wait or 1)
        headers = {"Retry-After": str(wait)} if error.wait else {}
        message = f"too many requests; try again in {wait} s"
        return Refusal(message, code="rate_limited", status=429, headers=headers)
    if isinstance(error, exceptions.APIException):
        code = error.get_codes()
        challenge = getattr(error, "auth_header", None)
        return Refusal(
            str(error.detail),
            code=code if isinstance(code, str) else error.default_code,
            status=error.status_code,
            headers={"WWW-Authenticate": challenge} if challenge else {},
        )
    return None


def _first_detail(detail: Any, path: str) -> tuple[str, Any]:
    """Walk DRF's nested details to the first refusal and the dotted path of its field."""
    if isinstance(detail, Mapping) and detail:
        name, inner = next(iter(detail.items()))
        return _first_detail(inner, path if name == "non_field_errors" else f"{path}.{name}".lstrip("."))
    if isinstance(detail, list) and detail:
        index = next((i for i, item in enumerate(detail) if item), 0)
        nested = isinstance(detail[index], Mapping | list)
        return _first_detail(detail[index], f"{path}.{index}".lstrip(".") if nested else path)
    return path, detail


def _roll_back() -> None:
    connection = transaction.get_connection()
    if connection.in_atomic_block and connection.settings_dict.get("ATOMIC_REQUESTS"):
        transaction.set_rollback(True)
