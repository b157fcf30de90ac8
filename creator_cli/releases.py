"""Find a version by name; wait until every replica confirmed that the key of a revoked one is gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from creator_cli.control_api import ControlApi
from creator_cli.custody_records import Holder
from creator_cli.errors import CliError
from creator_cli.names import parse_version_name
from creator_cli.records import Version

# The lease of a replica that is cut off from the platform expires after 30 s.
DARK_SECONDS = 40.0
_PUSH_SECONDS = 10.0  # that a replica has to confirm even if its lease is over
_POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Holders:
    """The replicas that were lent the key of a version, by whether they confirmed that it is gone."""

    confirmed: Sequence[Holder]
    silent: Sequence[Holder]

    @property
    def all(self) -> list[Holder]:
        """Return them all."""
        return [*self.confirmed, *self.silent]


def find_version(api: ControlApi, text: str) -> Version:
    """Find the creator's own version `org/slug@N`; raises Refused for a malformed name, CliError if there is none."""
    name = parse_version_name(text)
    for version in api.versions(name.model):
        if version.number == name.number:
            return version
    raise CliError(f"there is no version {name}", hint=f"intarsia versions {name.model}", code="not_found")


def wait_for_confirmations(api: ControlApi, version: Version) -> Holders:
    """Poll until every replica confirmed that the key of `version` is gone, at most 40 s; return who did not.

    A replica whose lease is over is given 10 s to confirm, and no longer.
    """
    started = time.monotonic()
    while True:
        found = api.holders(version.id)
        holders = Holders([one for one in found if one.confirmed], [one for one in found if not one.confirmed])
        waited = time.monotonic() - started
        over = waited > _PUSH_SECONDS and all(one.lease_over for one in holders.silent)
        if not holders.silent or over or waited > DARK_SECONDS:
            return holders
        time.sleep(_POLL_SECONDS)


def not_confirmed(name: str, silent: Sequence[Holder]) -> CliError:
    """Return the error that names the replicas that did not confirm and when the lease of each ends."""
    return CliError(
        f"{name} takes no new predictions, but not every replica confirmed that its key is gone: "
        f"{', '.join(str(one) for one in silent)}. A running replica wipes it when its lease ends; a stopped one only "
        "when it goes on or is ended",
        hint=f"repeat the command, or look: intarsia custody {name.partition('@')[0]}",
        code="not_confirmed",
    )
