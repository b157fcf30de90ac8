"""The sessions of the person who is signed in, as the page of sign-in and security shows them."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts import sessions
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.models import User
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView


class _PersonView(ControlView):
    """Base of operations on a person's own account, which a key never opens."""

    @property
    def signed_in(self) -> User:
        """Return the person of the session. Raises NotAllowed for a key."""
        if self.caller.user is None or self.caller.key is not None:
            raise NotAllowed("sign in on the web site to see your sessions", code="session_required")
        return self.caller.user


class SessionsView(_PersonView):
    """All sessions of a person."""

    class Session(serializers.Serializer):
        id = serializers.IntegerField()
        ip = serializers.CharField()
        user_agent = serializers.CharField()
        created_at = serializers.DateTimeField()
        last_seen_at = serializers.DateTimeField()
        current = serializers.SerializerMethodField(help_text="the session of this request")

        def get_current(self, row: sessions.UserSession) -> bool:
            return bool(row.session_key == self.context["request"].session.session_key)

    @extend_schema(operation_id="list_sessions", responses=Session(many=True))
    def get(self, request: Request) -> Response:
        """The sessions of the person who asks, the last used first."""
        rows = sessions.live_sessions_of(user=self.signed_in)
        return self.page(rows, self.Session, ordering=("-last_seen_at", "-id"))

    @extend_schema(operation_id="end_other_sessions", responses={204: None})
    def delete(self, request: Request) -> Response:
        """End every session of the person but this one."""
        sessions.end_other_sessions(user=self.signed_in, current_key=request.session.session_key or "")
        return Response(status=204)


class SessionView(_PersonView):
    """One session of a person."""

    @extend_schema(operation_id="end_session", responses={204: None})
    def delete(self, request: Request, session_id: int) -> Response:
        """End one session of the person: it has to sign in again."""
        if not sessions.end_session(user=self.signed_in, session_id=session_id):
            raise not_found("session of yours")
        return Response(status=204)
