"""The replica's calls to the platform: HTTP and nothing else. Every call has a time and a size limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from protocol.bodies import MAX_MESSAGE_BYTES, collect
from protocol.errors import BodyTooLarge, ProtocolError, VersionMismatch
from protocol.leases import LEASES_PATH, KeyOnLoan, LeaseAnswer, LeaseRequest, Lent, Purpose
from protocol.messages import Empty, ErrorAnswer, Message, Request, decode, encode
from protocol.packages import PACKAGE_URL_PATH, PackageUrl
from protocol.replicas import (
    CHALLENGE_PATH,
    ENROL_PATH,
    GOODBYE_PATH,
    HAND_OVER_PATH,
    HEARTBEAT_PATH,
    INTERNAL_PATH,
    REGISTER_PATH,
    Challenge,
    ChallengeRequest,
    EnrolmentAnswer,
    EnrolmentRequest,
    GoodBye,
    GoodByeAnswer,
    HandOverAnswer,
    Heartbeat,
    HeartbeatAnswer,
    Registered,
    Registration,
    read_registered,
)
from serving.platform.errors import LeaseRefused, PlatformError, ProtocolViolation, SessionRefused, VaultUnreachable

CALL_SECONDS = 5.0
MIN_DOWNLOAD_BYTES_PER_SECOND = 1 << 20


class VaultClient:
    """A client of one platform. Thread-safe."""

    def __init__(self, platform_url: str) -> None:
        """Make a client that connects on its first call."""
        timeout = httpx.Timeout(CALL_SECONDS, connect=3.0)
        self.platform_url = platform_url
        self.api_url = f"{platform_url}{INTERNAL_PATH}"
        self._client = httpx.Client(base_url=self.api_url, timeout=timeout, trust_env=False)
        self.session_token = ""

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def enrol(self, request: EnrolmentRequest) -> None:
        """Trade the credential for the identity. Raises LeaseRefused if it is refused, VaultUnreachable."""
        self._post(ENROL_PATH, request, EnrolmentAnswer, "")

    def challenge(self, name: str) -> str:
        """Return a nonce for this replica. Raises PlatformError."""
        return self._post(CHALLENGE_PATH, ChallengeRequest(name), Challenge, "").nonce

    def register(self, registration: Registration) -> Registered:
        """Register this boot and use its session from here on.

        Raises PlatformError; ProtocolViolation, which names both versions, for a platform of another protocol.
        """
        try:
            received = self._exchange(REGISTER_PATH, registration, "")
            answer = read_registered(received)
        except VersionMismatch as error:
            raise ProtocolViolation(str(error)) from None
        except ProtocolError:
            raise _unreadable(REGISTER_PATH) from None
        self.session_token = answer.session_token
        return answer

    def heartbeat(self, replica_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        """Report that this replica is alive. Raises SessionRefused, VaultUnreachable or ProtocolViolation."""
        return self._post(HEARTBEAT_PATH.format(replica_id=replica_id), beat, HeartbeatAnswer, self.session_token)

    def goodbye(self, replica_id: str, words: GoodBye) -> GoodByeAnswer:
        """Leave for good. Raises SessionRefused, VaultUnreachable or ProtocolViolation."""
        return self._post(GOODBYE_PATH.format(replica_id=replica_id), words, GoodByeAnswer, self.session_token)

    def hand_over(self, replica_id: str) -> bool:
        """Have this replica's conversations handed over; return whether that begins.

        Raises SessionRefused, VaultUnreachable or ProtocolViolation.
        """
        path = HAND_OVER_PATH.format(replica_id=replica_id)
        return self._post(path, Empty(), HandOverAnswer, self.session_token).taken

    def lease(self, digests: Sequence[str], purpose: Purpose) -> list[KeyOnLoan | LeaseRefused]:
        """Ask for the keys of up to 32 packages; return a key or a refusal, with the platform's code, for each.

        Raises SessionRefused, VaultUnreachable or ProtocolViolation: then none came.
        """
        answer = self._post(LEASES_PATH, LeaseRequest(list(digests), purpose), LeaseAnswer, self.session_token)
        if len(answer.lent) != len(digests):
            raise _unreadable(LEASES_PATH)
        return [_key_or_refusal(lent) for lent in answer.lent]

    def package_url(self, digest: str) -> str:
        """Return where a package can be fetched within a minute, absolute or relative to `api_url`.

        Raises SessionRefused, LeaseRefused with the platform's code, VaultUnreachable, ProtocolViolation.
        """
        return self._post(PACKAGE_URL_PATH.format(digest=digest), Empty(), PackageUrl, self.session_token).url

    def _post(self, path: str, message: Request, answer: type[Message], token: str) -> Message:
        received = self._exchange(path, message, token)
        try:
            return decode(received, answer)
        except ProtocolError:
            raise _unreadable(path) from None

    def _exchange(self, path: str, message: Request, token: str) -> bytes:
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            with _reachable(), self._client.stream("POST", path, content=encode(message), headers=headers) as response:
                received = collect(response.iter_bytes())
        except BodyTooLarge:
            raise ProtocolViolation("the platform's answer is too long") from None
        if response.status_code != 200:
            _raise_refusal(response, received)
        return received


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise VaultUnreachable(f"the platform does not answer ({type(error).__name__})") from None


def _key_or_refusal(lent: Lent) -> KeyOnLoan | LeaseRefused:
    if lent.key is not None:
        return lent.key
    if lent.refusal is None:
        raise _unreadable(LEASES_PATH)
    return LeaseRefused(lent.refusal.code, lent.refusal.message)


def _unreadable(path: str) -> ProtocolViolation:
    return ProtocolViolation(f"the platform's answer to {path} is not what the protocol says")


def _raise_refusal(response: httpx.Response, content: bytes) -> None:
    try:
        error = decode(content[:MAX_MESSAGE_BYTES], ErrorAnswer).error
    except ProtocolError:
        raise VaultUnreachable(f"the platform answered {response.status_code}") from None
    if error.code == "session_refused":
        raise SessionRefused(error.message)
    if response.status_code >= 500:
        raise VaultUnreachable(error.message)
    refused: PlatformError = LeaseRefused(error.code, error.message)
    raise refused
