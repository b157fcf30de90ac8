"""The papers of the demonstration: billing profiles, the receipt of the top-up, the close of the month before."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from devstack.console import line
from devstack.demo.platform_client import PlatformClient
from devstack.errors import LocalStackError
from devstack.state import REPOSITORY

RECEIPT_SECONDS = 60
PLATFORM = {
    "legal_name": "Intarsia GmbH (demonstration)",
    "line1": "Musterstraße 1",
    "postal_code": "10115",
    "city": "Berlin",
    "country": "DE",
    "tax_id": "DE123456789",
}
CONSUMER = {
    "legal_name": "Consumer GmbH (demonstration)",
    "line1": "Beispielweg 7",
    "postal_code": "20095",
    "city": "Hamburg",
    "country": "DE",
    "tax_id": "DE987654321",
}


def write_profiles(operator: PlatformClient, account: PlatformClient) -> None:
    """Give the platform and the consumer the legal names that papers need."""
    operator.put("billing-profile", PLATFORM)
    account.put("billing-profile", CONSUMER)


def fetch_receipt(account: PlatformClient, folder: Path) -> dict[str, Any]:
    """Wait for the receipt of the newest top-up, download it as PDF and CSV, and return what the API lists."""
    paid = next(top_up for top_up in account.get("topups")["results"] if top_up["state"] == "credited")
    deadline = time.monotonic() + RECEIPT_SECONDS
    while True:
        papers = account.get("papers?kind=receipt")["results"]
        if papers and papers[0]["issued_at"] >= paid["credited_at"]:
            break
        if time.monotonic() > deadline:
            raise LocalStackError(f"the top-up has no receipt after {RECEIPT_SECONDS} s")
        time.sleep(0.5)
    receipt: dict[str, Any] = papers[0]
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("pdf", "csv"):
        (folder / f"{receipt['number']}.{kind}").write_bytes(account.download(f"papers/{receipt['id']}/{kind}"))
    tax = receipt["tax_nano_usd"] / 1e9
    line(f"{receipt['number']}: ${receipt['total_nano_usd'] / 1e9:.2f}, of which ${tax:.2f} are tax; PDF and CSV")
    return receipt


def close_last_month(folder: Path) -> str:
    """Close the month before this one as the operator does, and return the command's last line. Idempotent."""
    month = datetime.now(UTC).date().replace(day=1) - timedelta(days=1)
    command = ["close_month", f"{month:%Y-%m}", "--by", "demonstration", "--papers", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "devstack", "manage", *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode != 0:
        raise LocalStackError(f"close_month failed:\n{(done.stderr or done.stdout)[-2000:]}")
    last = done.stdout.strip().splitlines()[-1]
    line(f"{month:%Y-%m} is closed: {last}")
    return last
