"""The fleet, for the platform's staff: replicas, and what staff do to them."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.incidents import require_operator
from marketplace.accounts.models import User
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.operations import replicas
from marketplace.operations.fleet import adapters_of, fleet, replica_named
from marketplace.operations.pools import STATES as POOL_STATES
from marketplace.operations.replicas import MAX_BUILDS, MAX_RELEASES_PER_HOUR
from marketplace.operations.shapes import fleet_fields, replica_fields
from marketplace.vault.identities import DEFAULT_RELEASES_PER_HOUR
from marketplace.vault.pool_demand import CLASSES

STATES = ("live", "draining", "drained", "silent", "waiting", "revoked")


class StaffView(ControlView):
    """Base of what staff alone do. On a page an act asks for a fresh sign-in; here it asks for a code."""

    staff_only = True

    @property
    def staff(self) -> User:
        """Return the member of staff who calls."""
        assert self.caller.user is not None  # staff_only
        return self.caller.user

    def require_code(self, code: str) -> User:
        """Return the member of staff, who shows a fresh code of the authenticator app. Raises SecondFactorRequired."""
        require_operator(user=self.staff, code=code)
        return self.staff


class WithCode(serializers.Serializer):
    code = serializers.RegexField(r"^[0-9]{6}$", help_text="what the authenticator app shows now")


class ReplicaShown(serializers.Serializer):
    name = serializers.CharField()
    state = serializers.ChoiceField(choices=STATES, help_text="waiting: its credential was not used yet")
    base = serializers.CharField(help_text="name of its base model")
    host = serializers.CharField()
    url = serializers.CharField(allow_null=True)
    replica_id = serializers.UUIDField(allow_null=True, help_text="of the boot that lives")
    build = serializers.CharField(allow_null=True)
    running = serializers.IntegerField()
    waiting = serializers.IntegerField(help_text="sequences in the queue")
    tokens_per_second = serializers.FloatField(help_text="between the last two heartbeats, prompts included")
    cache_hit_percent = serializers.IntegerField(allow_null=True)
    kv_percent = serializers.IntegerField(allow_null=True)
    leases = serializers.IntegerField(help_text="keys that it has on loan")
    resident = serializers.ListField(child=serializers.CharField(), help_text="adapters in its memory, at most 100")
    resident_count = serializers.IntegerField()
    last_seen_at = serializers.DateTimeField(allow_null=True)
    drained = serializers.BooleanField(help_text="gateways send it no new work")


class ReplicasView(StaffView):
    """The fleet."""

    class AllowReplica(WithCode):
        name = serializers.CharField(max_length=100)
        base = serializers.CharField(max_length=100, help_text="name or fingerprint of its base model")
        host = serializers.CharField(max_length=200, help_text="that of its --advertise-url")
        builds = serializers.ListField(
            child=serializers.CharField(max_length=64),
            max_length=MAX_BUILDS,
            required=False,
            default=list,
            help_text="digests of the builds it may run; empty: any",
        )
        releases_per_hour = serializers.IntegerField(
            min_value=0, max_value=MAX_RELEASES_PER_HOUR, required=False, default=DEFAULT_RELEASES_PER_HOUR
        )

    class ReplicaAllowed(serializers.Serializer):
        name = serializers.CharField()
        credential = serializers.CharField(help_text="shown once; good for one trade within an hour")

    class Fleet(serializers.Serializer):
        results = ReplicaShown(many=True)

    @extend_schema(operation_id="list_replicas", responses=Fleet)
    def get(self, request: Request) -> Response:
        """Every replica that may serve, and every boot that lives, by name; at most 200. Platform staff only."""
        return Response({"results": [replica_fields(line) for line in fleet()]})

    @extend_schema(operation_id="allow_replica", request=AllowReplica, responses={201: ReplicaAllowed})
    def post(self, request: Request) -> Response:
        """Allow a replica and make its credential. Platform staff with a second factor only."""
        wanted = self.parse(self.AllowReplica)
        by = self.require_code(wanted.pop("code"))
        credential = replicas.allow(by=by, **wanted)
        return Response({"name": wanted["name"], "credential": credential}, status=201)


class ClassShown(serializers.Serializer):
    name = serializers.ChoiceField(choices=CLASSES)
    target_s = serializers.FloatField(help_text="that a call of the class may wait")
    wait_s = serializers.FloatField(allow_null=True, help_text="that 95 % of calls wait less than, as predicted")
    arrivals_per_s = serializers.FloatField(help_text="the refused ones too")
    refused_per_s = serializers.FloatField()


class ScalingShown(serializers.Serializer):
    wanted = serializers.IntegerField()
    ordered = serializers.IntegerField(help_text="ready or not")
    least = serializers.IntegerField()
    most = serializers.IntegerField()
    why = serializers.CharField(help_text="the reason of the last decision")
    ready_seconds = serializers.FloatField(help_text="from an order until the replica takes calls")
    age_seconds = serializers.FloatField(help_text="since the fleet's controller reported")
    fresh = serializers.BooleanField(help_text="false: it fell silent")


class PoolShown(serializers.Serializer):
    name = serializers.CharField()
    base = serializers.CharField()
    state = serializers.ChoiceField(choices=POOL_STATES)
    healthy = serializers.BooleanField(help_text="false: a person is needed")
    live = serializers.IntegerField(help_text="replicas that take calls")
    draining = serializers.IntegerField()
    silent = serializers.IntegerField()
    allowed = serializers.IntegerField(allow_null=True, help_text="at once, by the pool's credential")
    seats = serializers.IntegerField()
    running = serializers.IntegerField()
    waiting = serializers.IntegerField()
    load_percent = serializers.IntegerField(allow_null=True, help_text="calls in percent of the seats")
    running_percent = serializers.IntegerField(help_text="of the seats, at most 100")
    waiting_percent = serializers.IntegerField()
    kv_percent = serializers.IntegerField(allow_null=True)
    tokens_per_second = serializers.FloatField()
    builds = serializers.ListField(child=serializers.CharField(), help_text="of the program; several in an update")
    demand_seconds = serializers.IntegerField(allow_null=True, help_text="null: the counters are away")
    classes = ClassShown(many=True)
    scaling = ScalingShown(allow_null=True, help_text="null: plain replicas, which nothing scales")


class EventShown(serializers.Serializer):
    at = serializers.DateTimeField()
    replica = serializers.CharField()
    what = serializers.CharField()
    effects = serializers.DictField(
        child=serializers.IntegerField(), allow_null=True, help_text="calls that moved, were cut off, were refused"
    )


class AdapterShown(serializers.Serializer):
    name = serializers.CharField(help_text="organization/slug@number")
    replicas = serializers.ListField(child=serializers.CharField(), help_text="where it is resident")


class FleetView(StaffView):
    """The fleet by pools."""

    class WholeFleet(serializers.Serializer):
        at = serializers.DateTimeField()
        healthy = serializers.BooleanField(help_text="whether every pool is")
        pools = PoolShown(many=True)
        replicas = ReplicaShown(many=True)
        events = EventShown(many=True, help_text="of a day, newest first, at most 30")
        adapters = AdapterShown(many=True, allow_null=True, help_text="null unless ?model= was given")

    @extend_schema(
        operation_id="get_fleet",
        parameters=[
            OpenApiParameter("model", str, description="organization/slug, with @number for one version"),
        ],
        responses=WholeFleet,
    )
    def get(self, request: Request) -> Response:
        """Pools with demand and scaling, replicas, the last events, and where a model's adapters are. Staff only."""
        model = request.query_params.get("model")
        adapters = None if model is None else adapters_of(model)
        if model is not None and adapters is None:
            raise not_found("model")
        return Response(fleet_fields(adapters))


class _ActOnReplica(StaffView):
    def shown(self, name: str) -> Response:
        """Return the replica as it is now."""
        line = replica_named(name)
        if line is None:
            raise not_found("replica")
        return Response(replica_fields(line))


class DrainReplicaView(_ActOnReplica):
    """Draining."""

    @extend_schema(operation_id="drain_replica", request=None, responses=ReplicaShown)
    def post(self, request: Request, name: str) -> Response:
        """Send a replica no new work, within 2 s; what runs there ends. Idempotent. Platform staff only."""
        replicas.drain(name=name, by=self.staff)
        return self.shown(name)


class UndrainReplicaView(_ActOnReplica):
    """The end of draining."""

    @extend_schema(operation_id="undrain_replica", request=None, responses=ReplicaShown)
    def post(self, request: Request, name: str) -> Response:
        """Send a replica work again. Idempotent. Platform staff only."""
        replicas.undrain(name=name, by=self.staff)
        return self.shown(name)


class RevokeReplicaView(_ActOnReplica):
    """The end of a replica."""

    max_body_size: ClassVar = 1024

    @extend_schema(operation_id="revoke_replica", request=WithCode, responses=ReplicaShown)
    def post(self, request: Request, name: str) -> Response:
        """End a replica: its identity, its sessions and its leases. Platform staff with a second factor only."""
        by = self.require_code(self.parse(WithCode)["code"])
        replicas.revoke(name=name, by=by)
        return self.shown(name)
