"""The replica-facing internal API, `/internal/v1/` (docs/protocol.md section 3). Never expose it beyond the replicas'
network: a proxy in front of the platform should refuse the prefix."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from redis import Redis
from redis.exceptions import RedisError

from marketplace.catalog.models import Version
from marketplace.vault import enrolment, fleets, identities, keys, pool_demand, services
from marketplace.vault.downloads import package_response
from marketplace.vault.errors import BadRequest, BodyTooLarge, SessionRefused, UnknownPackage, VaultError
from marketplace.vault.models import Replica
from protocol.bodies import MAX_MESSAGE_BYTES
from protocol.demand import PoolReport
from protocol.encoding import encode_base64url
from protocol.errors import ProtocolError, VersionMismatch
from protocol.leases import LeaseAnswer, LeaseRequest, PackageIdentity
from protocol.messages import ErrorAnswer, ErrorBody, Message, decode, encode
from protocol.replicas import (
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    Challenge,
    ChallengeRequest,
    EnrolmentAnswer,
    Heartbeat,
    HeartbeatAnswer,
    Registered,
    encode_keys,
    read_enrolment,
    read_registration,
)
from protocol.version import PROTOCOL_VERSION
from sealed_weights import SealError

log = logging.getLogger(__name__)
View = Callable[..., HttpResponseBase]


def endpoint(method: str) -> Callable[[View], View]:
    """Wrap a view: no CSRF (there are no cookies here), one method, typed errors as the protocol's JSON."""

    def decorate(view: View) -> View:
        @csrf_exempt
        @wraps(view)
        def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method != method:
                return _error("method_not_allowed", f"use {method}", 405)
            try:
                return view(request, *args, **kwargs)
            except VaultError as error:
                return _error(error.code, str(error), error.status)
            except (SealError, OSError) as error:
                # The root key or a stored key cannot be used: an operator's matter, and nothing for the wire.
                log.error("the vault cannot work: %s", error)
                return _error("vault_error", "the vault cannot answer now", 500)

        return wrapped

    return decorate


def _error(code: str, message: str, status: int) -> HttpResponse:
    return _answer(ErrorAnswer(ErrorBody(code, message)), status=status)


def _answer(message: msgspec.Struct, *, status: int = 200) -> HttpResponse:
    return HttpResponse(encode(message), content_type="application/json", status=status)


def _raw_body(request: HttpRequest) -> bytes:
    length = request.headers.get("Content-Length", "")
    if length.isdigit() and int(length) > MAX_MESSAGE_BYTES:
        raise BodyTooLarge(f"the body may be {MAX_MESSAGE_BYTES} bytes long")
    body = request.read(MAX_MESSAGE_BYTES + 1)
    if len(body) > MAX_MESSAGE_BYTES:
        raise BodyTooLarge(f"the body may be {MAX_MESSAGE_BYTES} bytes long")
    return body


def _parse(body: bytes, message: type[Message]) -> Message:
    try:
        return decode(body, message)
    except ProtocolError as error:
        raise BadRequest(str(error)) from None


def _bearer(request: HttpRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" and len(token) <= 512 else ""


def _session(request: HttpRequest) -> Replica:
    return enrolment.authenticate_session(_bearer(request))


def _ticket_keys() -> dict[str, str]:
    return encode_keys(keys.ticket_public_keys())


def _versioned(request: HttpRequest, read: Callable[[bytes], Message]) -> Message:
    try:
        return read(_raw_body(request))
    except VersionMismatch as error:
        raise BadRequest(str(error), code="protocol_version") from None
    except ProtocolError as error:
        raise BadRequest(str(error)) from None


@endpoint("POST")
def enrol(request: HttpRequest) -> HttpResponseBase:
    """Trade a credential for the replica's identity, once."""
    asked = _versioned(request, read_enrolment)
    enrol = fleets.claim_name if fleets.is_fleet_credential(asked.credential) else identities.enrol_replica
    enrol(request=asked)
    return _answer(EnrolmentAnswer(asked.name))


@endpoint("POST")
def challenge(request: HttpRequest) -> HttpResponseBase:
    """Hand out a nonce to an enrolled replica."""
    asked = _parse(_raw_body(request), ChallengeRequest)
    return _answer(Challenge(encode_base64url(enrolment.issue_challenge(name=asked.name))))


@endpoint("POST")
def register(request: HttpRequest) -> HttpResponseBase:
    """Register one boot of an enrolled replica."""
    registration = _versioned(request, read_registration)
    enrolled = enrolment.register_replica(registration=registration)
    return _answer(
        Registered(
            protocol_version=PROTOCOL_VERSION,
            replica_id=enrolled.replica.pk,
            session_token=enrolled.session_token,
            vault_public_key=encode_base64url(keys.vault_public_key()),
            ticket_keys=_ticket_keys(),
            heartbeat_seconds=HEARTBEAT_SECONDS,
            lease_seconds=LEASE_SECONDS,
        )
    )


@endpoint("POST")
def heartbeat(request: HttpRequest, replica_id: UUID) -> HttpResponseBase:
    """Renew leases, name revoked digests."""
    replica = _session(request)
    if replica.pk != replica_id:
        raise SessionRefused("this session is of another replica")
    beat = _parse(_raw_body(request), Heartbeat)
    renewal = enrolment.record_heartbeat(replica=replica, release_ids=beat.leases, stats=beat.stats)
    return _answer(HeartbeatAnswer(renewal.leases, renewal.revoked, _ticket_keys()))


@endpoint("POST")
def lease(request: HttpRequest) -> HttpResponseBase:
    """Lend the key of one package. The release-log row commits first (`services.release_key`)."""
    replica = _session(request)
    asked = _parse(_raw_body(request), LeaseRequest)
    version, creator_public_key = _version(asked.digest)
    sealed = services.release_key(replica=replica, digest=asked.digest, purpose=asked.purpose)
    return _answer(
        LeaseAnswer(
            lease=sealed.to_json(),
            creator_public_key=encode_base64url(creator_public_key),
            identity=PackageIdentity(
                version.model.organization_id,
                version.model_id,
                version.number,
                version.model.base_model.fingerprint,
            ),
            package_size=version.package_size,
        )
    )


def _version(digest: str) -> tuple[Version, bytes]:
    version = Version.objects.select_related("model__base_model", "signing_key").filter(package_digest=digest).first()
    if version is None or version.signing_key is None:
        raise UnknownPackage("no version has this package")
    return version, bytes(version.signing_key.public_key)


@endpoint("GET")
def package(request: HttpRequest, digest: str) -> HttpResponseBase:
    """Stream a sealed package, from the byte that `Range` asks for. It is ciphertext; the session is asked for all the
    same."""
    _session(request)
    _version(digest)
    return package_response(request, settings.ENV.blob_dir / "packages" / digest)


@endpoint("POST")
def demand(request: HttpRequest) -> HttpResponseBase:
    """Take how a fleet's pool stands, and answer with the demand for its base model."""
    report = _parse(_raw_body(request), PoolReport)
    base = fleets.base_of(pool=report.pool, credential=_bearer(request))
    try:
        with Redis.from_url(settings.ENV.valkey_url, socket_timeout=1, socket_connect_timeout=1) as valkey:
            pool_demand.store_report(valkey, report, base=base)
            found = pool_demand.read_demands(valkey).of(base)
    except RedisError as error:
        log.warning("the demand for the pool %s is not known: %s", report.pool, type(error).__name__)
        return _error("demand_unknown", "the counters are away; keep what the pool has", 503)
    return _answer(found)
