"""One envelope for every refusal: `{"error": {"code", "message", "field"?, "request_id"}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from billing import errors as billing_errors
from marketplace.accounts import errors as accounts_errors
from marketplace.catalog import errors as catalog_errors
from marketplace.vault.errors import VaultError

logger = logging.getLogger(__name__)

_STATUS_OF: tuple[tuple[type[Exception], int], ...] = (
    (accounts_errors.InvalidCredentials, 401),
    (accounts_errors.InvalidInput, 400),
    (accounts_errors.Conflict, 409),
    (accounts_errors.NotAllowed, 403),
    (catalog_errors.InvalidInput, 400),
    (catalog_errors.Conflict, 409),
    (catalog_errors.NotAllowed, 403),
    (catalog_errors.TooLarge, 413),
    (catalog_errors.PackageRefused, 422),
    (catalog_errors.StorageUnavailable, 507),
)


class Refusal(Exception):
    """A refusal that the API itself decides."""

    def __init__(self, status: int, code: str, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field


def not_found(what: str) -> Refusal:
    """The answer for a thing that is not there, or not the caller's: the two cannot be told apart."""
    return Refusal(404, "not_found", f"there is no such {what}")


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn any exception of a view into the envelope. What nobody foresaw is logged and told without detail."""
    headers: dict[str, str] = {}
    refusal = _refusal_of(error)
    if refusal is None:
        if settings.DEBUG:
            return None
        logger.error("unhandled error in %s", context["request"].path, exc_info=error)
        refusal = Refusal(500, "internal_error", "something broke on our side; nothing was changed, try again")
    if isinstance(error, exceptions.APIException):
        if wait := getattr(error, "wait", None):
            headers["Retry-After"] = str(int(wait) + 1)
        if challenge := getattr(error, "auth_header", None):
            headers["WWW-Authenticate"] = challenge
    if isinstance(error, catalog_errors.OffsetMismatch):
        headers["Upload-Offset"] = str(error.offset)
    _roll_back()
    response = Response(envelope(refusal, request_id_of(context["request"])), status=refusal.status, headers=headers)
    # A body that was not read (a refused upload) must not be taken for the next request on this connection.
    if refusal.status == 413:
        response["Connection"] = "close"
    return response


def envelope(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """The JSON body of a refusal."""
    body: dict[str, Any] = {"code": refusal.code, "message": refusal.message}
    if refusal.field is not None:
        body["field"] = refusal.field
    return {"error": {**body, "request_id": request_id}}


def request_id_of(request: Any) -> str:
    """The id that ControlView gave to the request."""
    return str(getattr(request, "request_id", ""))


def _refusal_of(error: Exception) -> Refusal | None:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, accounts_errors.AccountsError | catalog_errors.CatalogError):
        status = next((status for kind, status in _STATUS_OF if isinstance(error, kind)), 400)
        return Refusal(status, error.code, error.message, field=error.field)
    if isinstance(error, VaultError) and error.status != 500:
        return Refusal(error.status, error.code, str(error))
    if isinstance(error, billing_errors.InvalidTopUpAmount):
        return Refusal(400, "invalid", str(error), field="amount_cents")
    if isinstance(error, billing_errors.PaymentProviderUnavailable):
        return Refusal(503, "payment_provider_unavailable", "the payment provider cannot be reached; no money moved")
    if isinstance(error, Http404):
        return not_found("page")
    if isinstance(error, PermissionDenied):
        return Refusal(403, "forbidden", "this is not allowed")
    if isinstance(error, exceptions.ValidationError):
        field, detail = _first_detail(error.detail, "")
        return Refusal(400, str(getattr(detail, "code", "invalid")), str(detail), field=field or None)
    if isinstance(error, exceptions.Throttled):
        return Refusal(429, "throttled", f"too many requests; try again in {int(error.wait or 0) + 1} s")
    if isinstance(error, exceptions.APIException):
        code = error.get_codes()
        return Refusal(error.status_code, code if isinstance(code, str) else error.default_code, str(error.detail))
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
