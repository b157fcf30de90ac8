"""Find a version by name; wait until no replica holds the key of a revoked one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from creator_cli.control_api import ControlApi
from creator_cli.errors import CliError
from creator_cli.names import parse_model_name, parse_version_name
from creator_cli.records import Version

# The lease of a replica that is cut off from the platform expires after 30 s.
DARK_SECONDS = 40.0
_POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Leases:
    """The number of releases of a key, and how many of their leases the revocation ended early."""

    releases: int
    ended: int


def find_version(api: ControlApi, text: str) -> Version:
    """Find the creator's own version `org/slug@N`; raises Refused for a malformed name, CliError if there is none."""
    name = parse_version_name(text)
    for version in api.versions(name.model):
        if version.number == name.number:
            return version
    raise CliError(f"there is no version {name}", hint=f"intarsia versions {name.model}", code="not_found")


def wait_until_dark(api: ControlApi, version: Version) -> Leases:
    """Poll the custody list until no lease on `version` is alive; raises CliError after 40 s."""
    model = parse_model_name(version.model)
    deadline = time.monotonic() + DARK_SECONDS
    while True:
        releases = [one for one in api.custody(model)[1] if one.version == version.number]
        now = datetime.now(UTC)
        live = [one for one in releases if one.lease_revoked_at is None and one.lease_expires_at > now]
        if not live:
            return Leases(len(releases), sum(one.lease_revoked_at is not None for one in releases))
        if time.monotonic() > deadline:
            names = ", ".join(sorted({one.replica for one in live}))
            raise CliError(
                f"{version.model}@{version.number} is revoked, but {names} did not confirm; new predictions are off",
                hint=f"intarsia custody {version.model}",
            )
        time.sleep(_POLL_SECONDS)
