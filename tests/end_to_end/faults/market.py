"""Bases and listings of the fault run, and its scripted replicas, on a running platform."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.faults.enrolled import Enrolment
from tests.end_to_end.faults.scripted_replica import ScriptedReplica
from tests.end_to_end.platform import Platform

CONTEXT_LENGTH = 100_000
_OPEN = """
import json
from django.conf import settings
from django.utils import timezone
from marketplace.accounts.models import Organization
from marketplace.accounts.services import create_api_key
from marketplace.catalog.models import Model, Price, Version
from marketplace.catalog.services import register_base
from marketplace.vault.identities import Terms, issue_credential
maker, _ = Organization.objects.get_or_create(slug="faults", defaults={"name": "Fault run"})
credentials = {}
for slug, fingerprint in BASES:
    base = register_base(fingerprint=fingerprint, name=slug, config={}, context_length=CONTEXT_LENGTH)
    model = Model.objects.create(organization=maker, slug=slug, base_model=base, kind="base", title=slug)
    Version.objects.create(model=model, number=1, state="published", published_at=timezone.now())
    Price.objects.create(model=model, input_micro_usd_per_mtok=1_000_003, cached_input_micro_usd_per_mtok=100_001,
        output_micro_usd_per_mtok=3_000_007, per_prediction_nano_usd=5_000_501)
    credentials[slug] = issue_credential(name=slug, terms=Terms(base, "127.0.0.1"))
poor, _ = Organization.objects.get_or_create(slug="penniless", defaults={"name": "Penniless"})
_, key = create_api_key(organization=poor, name="drain", scopes=["predict"], created_by=None)
print(json.dumps({"database_url": settings.ENV.database_url, "credentials": credentials, "penniless_key": key}))
"""


def fingerprint_of(slug: str) -> str:
    """Return the fingerprint of the invented base model behind `faults/{slug}`."""
    return hashlib.sha256(f"fault run {slug}".encode()).hexdigest()


@dataclass(frozen=True)
class Market:
    """The scripted replicas by slug, not booted yet, a database URL that may read the books, and the API key of an
    organization without money."""

    replicas: dict[str, ScriptedReplica]
    database_url: str
    penniless_key: str


def open_market(platform: Platform, *slugs: str) -> Market:
    """Put `faults/{slug}` up for sale, each on a base model of its own, so that one replica name serves it.

    One management command does it all: each start of Django costs seconds on a busy machine.
    """
    bases = [(slug, fingerprint_of(slug)) for slug in slugs]
    script = f"BASES = {bases!r}\nCONTEXT_LENGTH = {CONTEXT_LENGTH}\n{_OPEN}"
    made = json.loads(platform.manage("shell", "-v", "0", "-c", script).splitlines()[-1])
    replicas = {}
    for slug, fingerprint in bases:
        folder = Path(platform.state.root) / "fault-replicas" / slug
        folder.mkdir(parents=True)
        (folder / "credential").write_text(made["credentials"][slug])
        replicas[slug] = ScriptedReplica(slug, fingerprint, Enrolment(platform.url, slug, fingerprint, folder))
    return Market(replicas, made["database_url"], made["penniless_key"])
