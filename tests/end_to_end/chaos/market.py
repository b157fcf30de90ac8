"""A tiny base model for sale on a running platform, and credentials for the replicas that serve it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.platform import Platform
from tests.warm import warm

LISTING = "chaos/tiny"
CONTEXT = 512  # tokens, one a byte
_OPEN = """
import json
from pathlib import Path
from django.conf import settings
from django.utils import timezone
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model, Price, Version
from marketplace.catalog.services import read_base_folder, register_reference
from marketplace.vault.identities import Terms, issue_credential
from protocol.checkpoints import ComputedIn
computed = ComputedIn.of_flags(dtype="float32", kv_dtype="auto", adapter_dtype="auto")
base = register_reference(name="chaos", folder=read_base_folder(Path(MODEL), computed))
maker = Organization.objects.create(slug="chaos", name="Chaos")
model = Model.objects.create(organization=maker, slug="tiny", base_model=base, kind="base", title="Tiny")
Version.objects.create(model=model, number=1, state="published", published_at=timezone.now())
Price.objects.create(model=model, input_micro_usd_per_mtok=1_000_003, cached_input_micro_usd_per_mtok=100_001,
    output_micro_usd_per_mtok=3_000_007, per_prediction_nano_usd=5_000_501)
terms = Terms(base, "127.0.0.1")
credentials = {name: issue_credential(name=name, terms=terms, seconds=86_400) for name in NAMES}
print(json.dumps({"database_url": settings.ENV.database_url, "credentials": credentials}))
"""


@dataclass(frozen=True)
class ChaosMarket:
    """The model's folder, a database URL that may read the books, and a credential for each name."""

    model: Path
    database_url: str
    credentials: dict[str, str]


def open_chaos_market(platform: Platform, names: list[str]) -> ChaosMarket:
    """Put `chaos/tiny` up for sale. One management command does it all: each start of Django costs seconds."""
    model = Path(platform.state.root) / "chaos-model"
    warm().run("tests.together.maker", "model", model)
    script = f"MODEL = {str(model)!r}\nNAMES = {names!r}\n{_OPEN}"
    made = json.loads(platform.manage("shell", "-v", "0", "-c", script).splitlines()[-1])
    return ChaosMarket(model, made["database_url"], made["credentials"])
