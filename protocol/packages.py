"""Sealed packages on their way to a replica, by URLs that are signed for one package and a minute."""

from __future__ import annotations

from protocol.messages import Answer

PACKAGE_URL_PATH = "packages/{digest}/url"
PACKAGE_PATH = "packages/{digest}"
PACKAGE_URL_SECONDS = 60  # within which a download begins; it may take longer


class PackageUrl(Answer, frozen=True):
    """Where a package can be fetched with `GET` and a `Range`, without a session.

    `url` is that of the blob store, or relative to this API where the platform serves its packages itself.
    """

    url: str
    seconds: int
