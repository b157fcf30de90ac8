"""Fill a fresh database for the benchmark, as a process of the platform: wallets with keys, a model, the stub replica.

python -m benchmarks.gateway.seed < order.json > keys.json
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import uuid
from datetime import timedelta

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings")

import django

django.setup()

from django.utils import timezone  # noqa: E402  these need the app registry

from benchmarks.gateway.platform import FLAT_MODEL, FLAT_NANO_USD, MODEL  # noqa: E402
from billing.services import credit_promotion  # noqa: E402
from marketplace.accounts.models import Organization  # noqa: E402
from marketplace.accounts.services import create_api_key  # noqa: E402
from marketplace.catalog.models import Model, Price, Version  # noqa: E402
from marketplace.catalog.services import register_base  # noqa: E402
from marketplace.vault.models import Replica  # noqa: E402
from marketplace.vault.services import bootstrap_platform_keys  # noqa: E402

RICH = 10**15  # nano-dollars: a million dollars


def seed(*, wallets: int, affordable: int, url: str, public_key: bytes, base: str) -> dict[str, object]:
    """Return the API keys of `wallets` organizations with credit, and of one with credit for `affordable` predictions
    of FLAT_MODEL alone."""
    _platform(url, public_key, base)
    keys = [_consumer(f"buyer-{number}", RICH) for number in range(wallets)]
    return {"keys": keys, "poor": _consumer("poor", affordable * FLAT_NANO_USD)}


def _platform(url: str, public_key: bytes, base: str) -> None:
    bootstrap_platform_keys()
    creator = Organization.objects.create(slug="maker", name="Maker")
    stub = register_base(name="stub", fingerprint=base, config={}, context_length=2048)
    for name, price in ((MODEL, (1_000_000, 100_000, 3_000_000, 500)), (FLAT_MODEL, (0, 0, 0, FLAT_NANO_USD))):
        slug = name.partition("/")[2]
        model = Model.objects.create(organization=creator, slug=slug, base_model=stub, title=slug)
        Version.objects.create(
            model=model,
            number=1,
            state="published",
            package_digest=hashlib.sha256(slug.encode()).hexdigest(),
            published_at=timezone.now(),
        )
        names = ("input_micro_usd_per_mtok", "cached_input_micro_usd_per_mtok", "output_micro_usd_per_mtok")
        Price.objects.create(model=model, **dict(zip((*names, "per_prediction_nano_usd"), price, strict=True)))
    replica = Replica.objects.create(
        id=uuid.uuid4(),
        name="stub",
        url=url,
        base_fingerprint=base,
        hpke_public_key=b"\0" * 32,
        receipt_public_key=public_key,
        session_digest=b"\0" * 32,
    )
    # It sends no heartbeats: it was last seen in the future.
    Replica.objects.filter(pk=replica.pk).update(last_seen_at=timezone.now() + timedelta(days=1))


def _consumer(slug: str, credit: int) -> str:
    """Return the API key of a new organization."""
    consumer = Organization.objects.create(slug=slug, name=slug)
    credit_promotion(organization=consumer, amount_nano_usd=credit, reference=f"benchmark {slug}")
    return create_api_key(organization=consumer, name="load", scopes=["predict"], created_by=None)[1]


if __name__ == "__main__":
    order = json.load(sys.stdin)
    order["public_key"] = bytes.fromhex(order["public_key"])
    json.dump(seed(**order), sys.stdout)
