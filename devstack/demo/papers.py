"""The papers of the demonstration: the tax invoice of the top-up, this month so far, the close of the month before."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from devstack.console import line
from devstack.demo.platform_client import PlatformClient
from devstack.errors import LocalStackError
from devstack.state import REPOSITORY
from protocol.money import decimal, usd

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


def fetch_tax_invoice(account: PlatformClient, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Wait for the receipt and tax invoice of the newest top-up, and download it as PDF and CSV.

    Returns it as the API lists it, and what an accountant would miss on it, in words.
    """
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
    rows = _rows(folder / f"{receipt['number']}.csv")
    (tax,) = [row for row in rows if row["section"] == "Tax by rate"]
    net, whole = (receipt["total_nano_usd"] - receipt["tax_nano_usd"], receipt["total_nano_usd"])
    line(f"{receipt['number']}, receipt of payment and tax invoice, as PDF and CSV:")
    line(f"  net {usd(net)} + {tax['Tax']} {tax['Rate']} ({tax['Place']}) = {usd(whole)}")
    line(f"  from {PLATFORM['legal_name']}, {PLATFORM['tax_id']}, to {CONSUMER['legal_name']}, {CONSUMER['tax_id']}")
    text = " ".join(row["item"] for row in rows)
    missing = [name for who in (PLATFORM, CONSUMER) for name in who.values() if len(name) > 2 and name not in text]
    problems = [f"the tax invoice does not name {name}" for name in missing]
    if receipt["tax_nano_usd"] * 100 != 19 * net:
        problems.append("the tax invoice has not the tax of its payer's country")
    return receipt, problems


def show_running_month(operator: PlatformClient, account: PlatformClient, folder: Path) -> list[str]:
    """Show this month's statement of the consumer, and the draft of its invoice. Returns what does not agree."""
    month = f"{datetime.now(UTC):%Y-%m}"
    manage("close_month", month, "--draft", "--papers", str(folder))
    statement = next(one for one in account.get("statements")["accounts"] if one["account"] == "customer_credit")
    line(f"{month} of the consumer's credit, which is still open:")
    line(f"  opening       ${decimal(statement['opening_nano_usd']):>16}")
    moved = {movement["kind"]: movement["amount_nano_usd"] for movement in statement["movements"]}
    for kind, amount in moved.items():
        line(f"  {kind.replace('_', ' '):<13} ${decimal(amount):>16}")
    line(f"  closing       ${decimal(statement['closing_nano_usd']):>16}")
    wallet = account.get("wallet")
    slug = account.get("me")["organization"]["slug"]
    totals = {row["Model"]: row for row in _rows(folder / f"draft-invoice-{slug}-{month}.csv") if row["Model"]}
    net = int(Decimal(totals["Net of the month"]["Amount (USD)"]) * 10**9)
    predictions = totals["Charged"]["Predictions"]
    line(f"draft of its invoice of the month: {predictions} predictions, {usd(net)}, paid from credit")
    problems = []
    if statement["closing_nano_usd"] != wallet["posted_nano_usd"]:
        problems.append("the statement of this month does not close at what the wallet has")
    if net != -sum(moved.get(kind, 0) for kind in ("prediction", "correction", "reversal")):
        problems.append("the draft of the invoice is not what the statement says that predictions cost")
    if sum(one["closing_nano_usd"] for one in operator.get("platform/statements")["accounts"]) != 0:
        problems.append("the balances of this month do not sum to zero")
    return problems


def close_last_month(operator: PlatformClient, folder: Path) -> tuple[str, list[str]]:
    """Close the month before this one as the operator does. Returns the month, and what does not agree."""
    month = f"{datetime.now(UTC).date().replace(day=1) - timedelta(days=1):%Y-%m}"
    last = manage("close_month", month, "--by", "demonstration", "--papers", str(folder)).splitlines()[-1]
    before, after = operator.get(f"platform/statements?month={month}"), operator.get("platform/statements")
    closing, opening = _balances(before, "closing"), _balances(after, "opening")
    booked = f"with {len(closing)} balances carried forward" if closing else "and nothing was booked in it or before"
    line(f"{month} is closed for good, {booked}: {last}")
    problems = [] if before["closed"] else [f"{month} is not closed"]
    if closing != opening:
        problems.append(f"this month does not open with the balances at which {month} closed")
    return month, problems


def manage(*command: str) -> str:
    """Run an operator's command; return what it printed. Raises LocalStackError."""
    done = subprocess.run(
        [sys.executable, "-m", "devstack", "manage", *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode != 0:
        raise LocalStackError(f"{command[0]} failed:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout.strip()


def _balances(statement: dict[str, Any], which: str) -> dict[str, int]:
    """Return the balances that are not zero, by kind of account."""
    return {one["account"]: one[f"{which}_nano_usd"] for one in statement["accounts"] if one[f"{which}_nano_usd"] != 0}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
