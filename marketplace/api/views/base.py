"""The base of every operation: a request id, a resolved caller, scopes, a body limit and the error envelope."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework import serializers
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from marketplace.accounts import audit
from marketplace.accounts import selectors as accounts
from marketplace.accounts.errors import InvalidInput, NotAllowed, NotFound, Refusal
from marketplace.accounts.freshness import ReauthenticationRequired, is_fresh
from marketplace.accounts.models import Organization, User
from marketplace.accounts.policies import is_staff
from marketplace.accounts.second_factor import SecondFactorMissing
from marketplace.api.authentication import ANONYMOUS, Caller, resolve_caller
from marketplace.api.errors import body_too_large, not_found
from marketplace.api.pagination import CreatedCursorPagination
from marketplace.api.parsers import MAX_JSON_SIZE, BoundedJSONParser
from marketplace.api.strict import require_known, require_shape
from marketplace.api.throttling import CallerThrottle, RateState
from marketplace.catalog import selectors as catalog_selectors
from marketplace.catalog.models import Model, Version
from protocol.request_ids import REQUEST_ID_HEADER, request_id_from


class HasScope(BasePermission):
    """The view's `scopes` say what each method needs; `public` names the methods that need no caller."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Refuse the unauthenticated (401) and the caller without the scope (403, saying which)."""
        assert isinstance(view, ControlView), "HasScope is made for ControlView"
        method = "GET" if request.method == "HEAD" else request.method
        if method in view.public or method == "OPTIONS":
            return True
        if not request.user:
            return False
        if view.staff_only and not view.caller.is_operator:
            if view.caller.user is not None and is_staff(user=view.caller.user) and view.caller.key is None:
                raise SecondFactorMissing
            raise NotAllowed("only the platform's staff may do this", code="staff_only")
        needed = view.scopes.get(str(method), ())
        if view.caller.lacks_second_factor and needed:
            raise SecondFactorMissing
        if needed and not view.caller.scopes & set(needed):
            if view.caller.organization is None:
                raise organization_required()
            raise NotAllowed(f"this needs the scope {' or '.join(needed)}", code="scope_missing")
        if method in view.fresh or (view.staff_only and method not in ("GET", "HEAD")):
            view.require_fresh()
        return True


class ControlView(APIView):
    """Base of every operation."""

    permission_classes: ClassVar = [HasScope]
    parser_classes: ClassVar = [BoundedJSONParser]
    pagination_class: ClassVar = CreatedCursorPagination
    throttle_classes: ClassVar[list[type[BaseThrottle]]] = []  # beside the limit of every caller
    scopes: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # method → any of these scopes
    public: ClassVar[frozenset[str]] = frozenset()
    staff_only: ClassVar[bool] = False
    # Methods that move money, weights or roles: a session must be fresh for them (`accounts.freshness`), a key is not
    # asked. Operations of staff that change something need no entry.
    fresh: ClassVar[frozenset[str]] = frozenset()
    # Method → statuses of its refusals beside those that follow from the view (`marketplace.api.schema`).
    refuses: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    unpaged: ClassVar[str] = ""  # the reason why a list comes whole: its number of rows is bounded
    max_body_size: ClassVar[int] = MAX_JSON_SIZE
    caller: Caller = ANONYMOUS
    rate: RateState | None = None

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer; everything that is recorded meanwhile is the caller's act, once the caller is known."""
        with audit.acting(audit.PLATFORM):
            response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        return response

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Give the request its id: the client's own, if it is a sane one."""
        wrapped: Request = super().initialize_request(request, *args, **kwargs)
        wrapped.request_id = request_id_from(request.headers.get(REQUEST_ID_HEADER))
        return wrapped

    def perform_authentication(self, request: Request) -> None:
        """Authenticate, then resolve the caller; a body that is too large is refused before anything reads it."""
        length = str(request.META.get("CONTENT_LENGTH") or "0")
        if not length.isdigit() or int(length) > self.max_body_size:
            raise body_too_large(self.max_body_size)
        super().perform_authentication(request)
        self.caller = resolve_caller(request)
        audit.set_actor(self.actor)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Let a caller in who may do this, and asks for what there is."""
        super().initial(request, *args, **kwargs)
        require_known(self, request)

    def get_throttles(self) -> list[BaseThrottle]:
        """Return the operation's own limits and the one of every caller."""
        return [CallerThrottle(), *super().get_throttles()]

    def note_rate(self, state: RateState) -> None:
        """Keep the limit that is the closest, for the headers of the answer."""
        if self.rate is None or state.remaining < self.rate.remaining:
            self.rate = state

    def finalize_response(self, request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any) -> Response:
        """Name the request on every answer, and keep answers out of shared caches."""
        final: Response = super().finalize_response(request, response, *args, **kwargs)
        final["X-Request-Id"] = getattr(request, "request_id", "")
        final.headers.setdefault("Cache-Control", "no-store")
        for name, value in (self.rate.headers() if self.rate else {}).items():
            final[name] = value
        return final

    @property
    def organization(self) -> Organization:
        """Return the organization that the caller acts for; raises Refusal 400 if none was chosen."""
        if self.caller.lacks_second_factor:
            raise SecondFactorMissing
        if self.caller.organization is None:
            raise organization_required()
        return self.caller.organization

    @property
    def actor(self) -> audit.Actor:
        """Return the caller as the audit log names them."""
        return audit.Actor(user=self.caller.user, key=self.caller.key, as_staff=self.staff_only)

    @property
    def member(self) -> User:
        """Return the person who acts. Raises NotAllowed for a key: roles are for people, and keys are shared."""
        if self.caller.user is None or self.caller.key is not None:
            raise NotAllowed("this is for people: sign in on the web site", code="session_required")
        return self.caller.user

    def own_organization(self, org: str) -> Organization:
        """Return the caller's organization, if `org` is its name or a former one; any other is not found."""
        if org != self.organization.slug and accounts.slug_now(org) != self.organization.slug:
            raise not_found("organization of yours")
        return self.organization

    def require_fresh(self) -> None:
        """Refuse a session whose person was not there within the last minutes. Raises ReauthenticationRequired."""
        if self.caller.key is None and not is_fresh(self.request):
            raise ReauthenticationRequired

    @property
    def person(self) -> uuid.UUID | None:
        """Return the id of the user who acts, in person or by a key that they made; None if they are gone."""
        return None if self.caller.user is None else self.caller.user.pk

    def parse(self, serializer: type[serializers.Serializer], *, query: bool = False, partial: bool = False) -> Any:
        """Validate the body (or the query string) and return the typed values.

        Raises ValidationError, and InvalidInput for an unknown name or another JSON type than the description says.
        """
        # A query as plain values: in a form an empty one would count as left out.
        data = self.request.query_params.dict() if query else self.request.data
        checked = serializer(data=data, partial=partial)
        if not query:
            require_shape(checked, data)
        checked.is_valid(raise_exception=True)
        return checked.validated_data

    def show(self, shape: type[serializers.Serializer], row: Any, *, many: bool = False, **context: Any) -> Any:
        """Return `row` (or `many` rows) as `shape` shows it; `context` is what the shape needs beside the row."""
        return shape(row, many=many, context={"request": self.request, **context}).data

    def page(
        self,
        rows: QuerySet[Any],
        shape: type[serializers.Serializer],
        *,
        ordering: tuple[str, ...] | None = None,
        **context: Any,
    ) -> Response:
        """Return one page of `rows`, newest first."""
        paginator = self.pagination_class()
        if ordering:
            paginator.ordering = ordering
        found = paginator.paginate_queryset(rows, self.request, view=self) or []
        return paginator.get_paginated_response(self.show(shape, found, many=True, **context))

    def owned_model(self, org: str, slug: str) -> Model:
        """Return the model `org/slug` of the caller's organization; any other is not found."""
        model = catalog_selectors.owned_model(organization=self.organization, org_slug=org, slug=slug)
        if model is None:
            raise not_found("model")
        return model

    def owned_version(self, version_id: uuid.UUID) -> Version:
        """Return the version of a model of the caller's organization; any other is not found."""
        version = catalog_selectors.owned_version(organization=self.organization, version_id=version_id)
        if version is None:
            raise not_found("version")
        return version


class UnknownPath(ControlView):
    """Any path below /api/v1/ that names no operation."""

    public = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
    schema = None

    def _refuse(self, request: Request, **_: Any) -> Response:
        raise NotFound("there is no such operation; see /api/v1/schema")

    get = post = put = patch = delete = _refuse


def organization_required() -> Refusal:
    """Return the refusal for a signed-in user who did not say for which of several organizations they act."""
    return InvalidInput(
        "say which organization, in the header X-Organization",
        code="organization_required",
        field="X-Organization",
    )
