"""Fill a fresh database for the benchmark, as a process of the platform: wallets with keys, a model, the stub replica.

python -m benchmarks.gateway.seed < order.json > keys.json
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from datetime import timedelta

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings")

import django

django.setup()

from django.utils import timezone  # noqa: E402  these need the app registry

from billing.services import credit_promotion  # noqa: E402
from marketplace.accounts.models import Organization  # noqa: E402
from marketplace.accounts.services import create_api_key  # noqa: E402
from marketplace.catalog.models import BaseModel, Model, Price, Version  # noqa: E402
from marketplace.vault.models import Replica  # noqa: E402
from marketplace.vault.services import bootstrap_platform_keys  # noqa: E402

MODEL = "maker/thing"
RICH = 10**15  # nano-dollars: a million dollars


def seed(*, wallets: int, poor: int, url: str, public_key: bytes, base: str) -> dict[str, object]:
    """Return the API keys of `wallets` organizations with credit, and of one that has `poor` nano-dollars alone."""
    bootstrap_platform_keys()
    creator = Organization.objects.create(slug="maker", name="Maker")
    tiny = BaseModel.objects.create(name="stub", fingerprint=base, config={}, context_length=2048)
    model = Model.objects.create(organization=creator, slug="thing", base_model=tiny, title="Thing")
    Version.objects.create(
        model=model, number=1, state="published", package_digest="cd" * 32, published_at=timezone.now()
    )
    Price.objects.create(
        model=model,
        input_micro_usd_per_mtok=1_000_000,
        cached_input_micro_usd_per_mtok=100_000,
        output_micro_usd_per_mtok=3_000_000,
        per_prediction_nano_usd=500,
    )
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
    keys = []
    for number in range(wallets + 1):
        consumer = Organization.objects.create(slug=f"buyer-{number}", name=f"Buyer {number}")
        credit_promotion(
            organization=consumer, amount_nano_usd=RICH if number < wallets else poor, reference=f"benchmark {number}"
        )
        keys.append(create_api_key(organization=consumer, name="load", scopes=["predict"], created_by=None)[1])
    return {"keys": keys[:wallets], "poor": keys[wallets]}


if __name__ == "__main__":
    order = json.load(sys.stdin)
    order["public_key"] = bytes.fromhex(order["public_key"])
    json.dump(seed(**order), sys.stdout)
