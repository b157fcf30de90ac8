"""Runs of the organization, whichever of its keys made them; a key makes and uses its own at `/v1/runs`."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.budgets.runs import selectors, services
from billing.budgets.runs.records import RunState
from billing.models import Hold, Run
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.receipts.run_calls import calls_in

_READERS = ("account", "read")


class RunPage(serializers.Serializer):
    id = serializers.CharField(source="label", help_text="as X-Intarsia-Run names it")
    status = serializers.ChoiceField(["open", "closed", "expired"])
    name = serializers.CharField()
    metadata = serializers.DictField(child=serializers.CharField())
    max_cost_nano_usd = serializers.IntegerField()
    spent_nano_usd = serializers.IntegerField()
    held_nano_usd = serializers.IntegerField(help_text="set aside by calls in flight")
    max_calls = serializers.IntegerField()
    calls = serializers.IntegerField(help_text="calls that were admitted")
    key_id = serializers.UUIDField(source="key_line", help_text="the first key of the line that made it")
    trace_id = serializers.CharField()
    created_at = serializers.DateTimeField()
    deadline = serializers.DateTimeField()
    closed_at = serializers.DateTimeField(allow_null=True)

    def to_representation(self, instance: Run | RunState) -> dict[str, object]:
        """Show a row as its state."""
        shown: dict[str, object] = super().to_representation(
            RunState.of(instance) if isinstance(instance, Run) else instance
        )
        return shown


class RunCall(serializers.Serializer):
    prediction_id = serializers.UUIDField(help_text="its receipt is at /api/v1/receipts/{prediction_id}")
    model = serializers.CharField()
    state = serializers.ChoiceField(["running", "charged", "free"])
    reason = serializers.CharField(help_text="how it finished, or why it was free")
    attempt = serializers.IntegerField(help_text="replicas that were asked, one after the other")
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    total_ms = serializers.IntegerField(allow_null=True)
    replica_ms = serializers.IntegerField(allow_null=True)
    first_token_ms = serializers.IntegerField(allow_null=True, help_text="at the replica, its queue included")
    queue_ms = serializers.IntegerField(allow_null=True, help_text="of it, the wait in the replica's queue")
    tool_arguments = serializers.ChoiceField(
        ["valid", "invalid"],
        allow_null=True,
        help_text="whether the arguments of its calls of functions follow their schemas; null: no call, or not known",
    )
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    cost_nano_usd = serializers.IntegerField()


class _Calls(serializers.ListSerializer):
    """A page of holds, shown as calls: the receipts of all come with one query."""

    def to_representation(self, data: list[Hold]) -> list[dict[str, object]]:
        return [self.child.to_representation(call) for call in calls_in(list(data))]


class RunCallRow(RunCall):
    class Meta:
        list_serializer_class = _Calls


class RunsView(ControlView):
    """Runs of the organization."""

    scopes: ClassVar = {"GET": _READERS}

    @extend_schema(operation_id="list_runs", responses=RunPage(many=True))
    def get(self, request: Request) -> Response:
        """Every run, newest first, until 90 days after its deadline."""
        return self.page(selectors.runs_of(self.organization), RunPage, ordering=("-created_at", "-node_id"))


class _OneRunView(ControlView):
    def owned_run(self, run_id: UUID) -> Run:
        run = selectors.run_of(self.organization, run_id)
        if run is None:
            raise not_found("run")
        return run


class RunView(_OneRunView):
    """One run."""

    scopes: ClassVar = {"GET": _READERS}

    @extend_schema(operation_id="get_run", responses=RunPage)
    def get(self, request: Request, run_id: UUID) -> Response:
        """Return what is spent and left of a run."""
        return Response(self.show(RunPage, self.owned_run(run_id)))


class RunCallsView(_OneRunView):
    """The calls of one run."""

    scopes: ClassVar = {"GET": _READERS}

    @extend_schema(operation_id="list_run_calls", responses=RunCallRow(many=True))
    def get(self, request: Request, run_id: UUID) -> Response:
        """Every call that was admitted, in their order, with its tokens, cost and the times of its receipt."""
        calls = selectors.calls_of(self.owned_run(run_id))
        return self.page(calls, RunCallRow, ordering=("created_at", "id"))


class CloseRunView(_OneRunView):
    """The end of a run by hand."""

    scopes: ClassVar = {"POST": ("account",)}

    @extend_schema(operation_id="close_run", request=None, responses=RunPage)
    def post(self, request: Request, run_id: UUID) -> Response:
        """Let a run take no further call; those in flight end as they would. Idempotent."""
        closed = services.close_run(run=self.owned_run(run_id), actor=self.actor)
        return Response(self.show(RunPage, closed))
