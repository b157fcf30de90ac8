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

from marketplace.accounts.errors import Refusal
from marketplace.catalog.models import Version
from marketplace.vault import downloads, enrolment, fleets, identities, keys, pool_demand, services, sessions, tasks
from marketplace.vault.errors import BadRequest, BodyTooLarge, SessionRefused, UnknownPackage, VaultError
from marketplace.vault.models import Replica
from protocol.bodies import MAX_MESSAGE_BYTES
from protocol.demand import PoolReport
from protocol.encoding import encode_base64url
from protocol.errors import ProtocolError, VersionMismatch
from protocol.leases import KeyOnLoan, LeaseAnswer, LeaseRequest, Lent, PackageIdentity, Purpose
from protocol.messages import Empty, ErrorAnswer, ErrorBody, Message, decode, encode
from protocol.packages import PACKAGE_URL_SECONDS, PackageUrl
from protocol.replicas import (
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    Challenge,
    ChallengeRequest,
    EnrolmentAnswer,
    HandOverAnswer,
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
            except Refusal as error:
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


def session_of(request: HttpRequest, replica_id: UUID) -> Replica:
    """Return the living replica whose session this is. Raises SessionRefused, also for another replica's."""
    replica = _session(request)
    if replica.pk != replica_id:
        raise SessionRefused("this session is of another replica")
    return replica


def parsed(request: HttpRequest, message: type[Message]) -> Message:
    """Return the message in the body. Raises BadRequest and BodyTooLarge."""
    return _parse(_raw_body(request), message)


def answered(message: msgspec.Struct) -> HttpResponse:
    """Return the message as an answer."""
    return _answer(message)


@endpoint("POST")
def heartbeat(request: HttpRequest, replica_id: UUID) -> HttpResponseBase:
    """Renew leases, name revoked digests."""
    replica = session_of(request, replica_id)
    beat = _parse(_raw_body(request), Heartbeat)
    ended = sessions.record_heartbeat(replica=replica, stats=beat.stats, returned=beat.returned)
    return _answer(HeartbeatAnswer(ended.revoked, ended.leases, _ticket_keys()))


@endpoint("POST")
def hand_over(request: HttpRequest, replica_id: UUID) -> HttpResponseBase:
    """Have the conversations of a replica that drains go to their next homes."""
    replica = session_of(request, replica_id)
    _parse(_raw_body(request), Empty)
    return _answer(HandOverAnswer(tasks.hand_over_once(replica)))


@endpoint("POST")
def lease(request: HttpRequest) -> HttpResponseBase:
    """Lend the keys of packages, each by itself: a refused one leaves the others. The release-log row of each commits
    first (`services.release_key`)."""
    replica = _session(request)
    asked = _parse(_raw_body(request), LeaseRequest)
    return _answer(LeaseAnswer([_lend(replica, digest, asked.purpose) for digest in asked.digests]))


def _lend(replica: Replica, digest: str, purpose: Purpose) -> Lent:
    try:
        version, creator_public_key = _version(digest)
        sealed = services.release_key(replica=replica, digest=digest, purpose=purpose)
    except SessionRefused:
        raise
    except VaultError as error:
        return Lent(None, ErrorBody(error.code, str(error)))
    identity = PackageIdentity(
        version.model.organization_id, version.model_id, version.number, version.model.base_model.fingerprint
    )
    key = KeyOnLoan(sealed.to_json(), encode_base64url(creator_public_key), identity, version.package_size)
    return Lent(key, None)


def _version(digest: str) -> tuple[Version, bytes]:
    version = Version.objects.select_related("model__base_model", "signing_key").filter(package_digest=digest).first()
    if version is None or version.signing_key is None:
        raise UnknownPackage("no version has this package")
    return version, bytes(version.signing_key.public_key)


@endpoint("POST")
def package_url(request: HttpRequest, digest: str) -> HttpResponseBase:
    """Say where a sealed package can be fetched, for a minute. It is ciphertext; a session is needed all the same."""
    _session(request)
    _parse(_raw_body(request), Empty)
    _version(digest)
    return _answer(PackageUrl(downloads.package_url(digest), PACKAGE_URL_SECONDS))


@endpoint("GET")
def package(request: HttpRequest, digest: str) -> HttpResponseBase:
    """Stream a sealed package of the platform's own folder, from the byte that `Range` asks for."""
    downloads.require_grant(digest, request.GET.get("grant", ""))
    return downloads.package_response(request, digest)


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
