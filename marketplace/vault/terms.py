"""Options of the commands about replicas: the terms under which one may register."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from marketplace.catalog.models import BaseModel
from marketplace.vault.identities import DEFAULT_RELEASES_PER_HOUR, Terms
from marketplace.vault.models import EnrolledReplica
from protocol.names import is_digest


def add_terms(parser: CommandParser, *, required: bool) -> None:
    """Add the options; those that are not given keep their value where a replica is known."""
    parser.add_argument("name", help="the replica's name, as in its --replica-name")
    parser.add_argument("--base", required=required, help="name or fingerprint of its base model (see add_base_model)")
    parser.add_argument("--host", required=required, help="host of its --advertise-url: a name or an address")
    parser.add_argument(
        "--build", action="append", metavar="DIGEST", help="a build it may run; repeat for several (default: any)"
    )
    parser.add_argument("--releases-per-hour", type=int, help="keys it may be lent within an hour")


def terms_of(options: Mapping[str, Any], known: EnrolledReplica | None = None) -> Terms:
    """Return the terms that the options give, for a known replica on top of its own. Raises CommandError."""
    builds = options["build"] if options["build"] is not None else (known.builds if known else [])
    for digest in builds:
        if not is_digest(digest):
            raise CommandError(f"--build {digest}: a build digest has 64 hex digits")
    releases = options["releases_per_hour"]
    if releases is None:
        releases = known.releases_per_hour if known else DEFAULT_RELEASES_PER_HOUR
    if releases < 0:
        raise CommandError("--releases-per-hour may not be negative")
    base = find_base(options["base"]) if options["base"] else (known.base_model if known else None)
    host = options["host"] or (known.host if known else "")
    assert base is not None and host, "required options of a new replica"
    return Terms(base, host, builds, releases)


def find_base(name: str) -> BaseModel:
    """Return the base model of this name or fingerprint. Raises CommandError."""
    found = list(BaseModel.objects.filter(fingerprint=name)) or list(BaseModel.objects.filter(name=name))
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(BaseModel.objects.values_list("name", flat=True))) or "none yet; see add_base_model"
    raise CommandError(f"{'several base models are' if found else 'no base model is'} called {name!r} (known: {known})")
