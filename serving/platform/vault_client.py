"""The replica's calls to the platform: HTTP and nothing else. Every call has a time and a size limit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from protocol.bodies import MAX_MESSAGE_BYTES, collect
from protocol.errors import BodyTooLarge, ProtocolError, VersionMismatch
from protocol.leases import LEASES_PATH, PACKAGE_PATH, KeyOnLoan, LeaseAnswer, LeaseRequest, Lent, Purpose
from protocol.messages import ErrorAnswer, Message, Request, decode, encode
from protocol.replicas import (
    CHALLENGE_PATH,
    ENROL_PATH,
    HEARTBEAT_PATH,
    INTERNAL_PATH,
    REGISTER_PATH,
    Challenge,
    ChallengeRequest,
    EnrolmentAnswer,
    EnrolmentRequest,
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
        self._client = httpx.Client(base_url=f"{platform_url}{INTERNAL_PATH}", timeout=timeout, trust_env=False)
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

    def lease(self, digests: Sequence[str], purpose: Purpose) -> list[KeyOnLoan | LeaseRefused]:
        """Ask for the keys of up to 32 packages; return a key or a refusal, with the platform's code, for each.

        Raises SessionRefused, VaultUnreachable or ProtocolViolation: then none came.
        """
        answer = self._post(LEASES_PATH, LeaseRequest(list(digests), purpose), LeaseAnswer, self.session_token)
        if len(answer.lent) != len(digests):
            raise _unreadable(LEASES_PATH)
        return [_key_or_refusal(lent) for lent in answer.lent]

    def download(self, digest: str, size: int, partial: Path) -> None:
        """Fetch a package of exactly `size` bytes into `partial`, after the bytes that are already there.

        Raises VaultUnreachable (received bytes stay for the next try), SessionRefused, LeaseRefused, ProtocolViolation
        and OSError.
        """
        deadline = time.monotonic() + 30.0 + size / MIN_DOWNLOAD_BYTES_PER_SECOND
        have = partial.stat().st_size if partial.exists() else 0
        if have > size:
            partial.unlink()
            have = 0
        if have == size:
            return
        headers = {"Authorization": f"Bearer {self.session_token}", "Range": f"bytes={have}-"}
        with (
            _reachable(),
            self._client.stream("GET", PACKAGE_PATH.format(digest=digest), headers=headers) as response,
            partial.open("ab") as file,
        ):
            if response.status_code not in (200, 206):
                _raise_refusal(response, response.read())
            if response.status_code == 200:
                file.truncate(0)
                have = 0
            for chunk in response.iter_raw():
                have += len(chunk)
                if have > size:
                    file.truncate(0)
                    raise ProtocolViolation("the platform sent more bytes than the package has")
                file.write(chunk)
                if time.monotonic() > deadline:
                    raise VaultUnreachable("the download of a package took too long")
        if have != size:
            raise VaultUnreachable("the download of a package broke off")

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
