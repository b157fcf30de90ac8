"""Bases and listings of the fault run, and its scripted replicas, on a running platform."""

from __future__ import annotations

import hashlib
from pathlib import Path

from protocol.replicas import BaseDescription
from tests.end_to_end.faults.enrolled import Enrolment
from tests.end_to_end.faults.scripted_replica import ScriptedReplica
from tests.end_to_end.platform import Platform

CONTEXT_LENGTH = 100_000
_LIST = """
from django.utils import timezone
from marketplace.accounts.models import Organization
from marketplace.catalog.models import BaseModel, Model, Price, Version
maker, _ = Organization.objects.get_or_create(slug="faults", defaults={{"name": "Fault run"}})
base, _ = BaseModel.objects.get_or_create(
    fingerprint="{fingerprint}", defaults={{"name": "{slug}", "config": {{}}, "context_length": {context}}})
if not Model.objects.filter(organization=maker, slug="{slug}").exists():
    model = Model.objects.create(organization=maker, slug="{slug}", base_model=base, kind="base", title="{slug}")
    Version.objects.create(model=model, number=1, state="published", published_at=timezone.now())
    Price.objects.create(model=model, input_micro_usd_per_mtok=1_000_003, cached_input_micro_usd_per_mtok=100_001,
        output_micro_usd_per_mtok=3_000_007, per_prediction_nano_usd=501)
"""


def fingerprint_of(slug: str) -> str:
    """Return the fingerprint of the invented base model behind `faults/{slug}`."""
    return hashlib.sha256(f"fault run {slug}".encode()).hexdigest()


def open_market(platform: Platform, *slugs: str) -> None:
    """Put `faults/{slug}` up for sale, each on a base model of its own, so that one replica name serves it."""
    script = "\n".join(
        _LIST.format(slug=slug, fingerprint=fingerprint_of(slug), context=CONTEXT_LENGTH) for slug in slugs
    )
    platform.manage("shell", "-c", script)


def replica_for(platform: Platform, slug: str) -> ScriptedReplica:
    """Make the scripted replica that serves `faults/{slug}`; `boot` enrols it."""
    fingerprint = fingerprint_of(slug)
    base = BaseDescription(slug, fingerprint, {}, CONTEXT_LENGTH)
    folder = Path(platform.state.root) / "fault-replicas" / slug
    folder.mkdir(parents=True)
    terms = ("--base", fingerprint, "--host", "127.0.0.1", "--credential-file", str(folder / "credential"))
    platform.manage("issue_replica_credential", slug, *terms)
    return ScriptedReplica(slug, fingerprint, Enrolment(platform.url, slug, base, folder))
