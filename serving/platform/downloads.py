"""Downloads of sealed packages, by URLs that the platform signs for one package and a minute.

A URL leads to the platform itself or to its blob store. Either gets the URL and nothing else: no session, no cookie.
The bytes are ciphertext, and are proven genuine where they are opened; here their size, time and origin are bound.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from protocol.packages import PACKAGE_PATH
from serving.platform.errors import ProtocolViolation, VaultUnreachable
from serving.platform.vault_client import CALL_SECONDS, MIN_DOWNLOAD_BYTES_PER_SECOND, VaultClient

ATTEMPTS = 3  # in a row that bring less than PROGRESS_BYTES each
PROGRESS_BYTES = 8 << 20
SLACK_SECONDS = 30.0  # beyond what the size takes at MIN_DOWNLOAD_BYTES_PER_SECOND
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")


class Downloads:
    """Fetches packages from the platform and from the origins that this replica's operator names. Thread-safe."""

    def __init__(self, client: VaultClient, origins: Collection[str] = ()) -> None:
        """Ask `client` for URLs; `origins` are those of the platform's blob store, as https://host[:port]."""
        self._client, self._origins = client, frozenset(origins)
        timeout = httpx.Timeout(CALL_SECONDS, connect=3.0)
        # Apart from the platform's client, which has the session; a redirect is not followed but refused.
        self._http = httpx.Client(timeout=timeout, trust_env=False, follow_redirects=False)

    def fetch(self, digest: str, size: int, partial: Path) -> None:
        """Fetch a package of exactly `size` bytes into `partial`, after the bytes that are already there.

        A URL that expired or a connection that broke is replaced by a new one. Raises VaultUnreachable (received bytes
        stay for the next try), SessionRefused, LeaseRefused, ProtocolViolation and OSError.
        """
        deadline = time.monotonic() + SLACK_SECONDS + size / MIN_DOWNLOAD_BYTES_PER_SECOND
        failures = 0
        while (have := _arrived(partial, size)) < size:
            try:
                self._continue(self._url(digest), have, size, partial, deadline)
            except VaultUnreachable:
                failures = 0 if _arrived(partial, size) - have >= PROGRESS_BYTES else failures + 1
                if failures == ATTEMPTS or time.monotonic() > deadline:
                    raise

    def _url(self, digest: str) -> str:
        """Return the absolute URL to fetch from now. Raises ProtocolViolation for a place that nobody named."""
        url = self._client.package_url(digest)
        if url.startswith(PACKAGE_PATH.format(digest=digest) + "?"):
            return f"{self._client.api_url}{url}"
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}".lower()
        if origin not in self._origins:
            shown = origin if "@" not in origin else "a URL with a login"
            raise ProtocolViolation(f"the platform's packages are at {shown}: --package-origins does not name it")
        return url

    def _continue(self, url: str, have: int, size: int, partial: Path, deadline: float) -> None:
        headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"}
        try:
            with self._http.stream("GET", url, headers=headers) as response, partial.open("ab") as file:
                if not _continues(response, have, size):
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
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Not the error's text: it may hold the URL, whose signature is a permission.
            raise VaultUnreachable(f"the download of a package broke off ({type(error).__name__})") from None
        if have != size:
            raise VaultUnreachable("the download of a package broke off")


def _arrived(partial: Path, size: int) -> int:
    """Return how many bytes are there; a file that is longer than the package is none of it."""
    have = partial.stat().st_size if partial.exists() else 0
    if have > size:
        partial.unlink()
        return 0
    return have


def _continues(response: httpx.Response, have: int, size: int) -> bool:
    """Return whether the body goes on at byte `have`, false if it begins anew; the body of a refusal is not read."""
    if response.status_code == 200:
        return False
    if response.is_redirect:
        raise ProtocolViolation("the package's URL leads elsewhere: redirects are not followed")
    if response.status_code != 206:
        raise VaultUnreachable(f"a package's URL was answered with {response.status_code}")
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != have or found[2] not in ("*", str(size)):
        raise ProtocolViolation("another part of the package was sent than was asked for")
    return True
