"""The audit of the books alone: hold, usage row, receipt, ledger and corrections of each prediction tell one story."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.end_to_end.faults.audit_money import Corrections
from tests.end_to_end.faults.clerk import Errands
from tests.end_to_end.faults.rows import Rows


@dataclass
class Verdict:
    """The audit's result: `faults` must be empty. The rest is for the report."""

    faults: list[str] = field(default_factory=list)
    predictions: int = 0
    charged: int = 0
    refunded: int = 0
    corrected: int = 0
    paid_out: int = 0
    free: int = 0
    charged_nano_usd: int = 0
    slowest_close: float = 0.0


class Books:
    """Hold, usage row, receipt and ledger of each prediction must tell one story."""

    def __init__(self, rows: Rows, errands: Errands, verdict: Verdict) -> None:
        self._rows, self._verdict = rows, verdict
        self._keys = {row["id"]: row for row in rows.replicas}
        self.usage: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows.usage:
            self.usage[row["id"]].append(row)
        self.entries: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows.entries:
            self.entries[row["id"]].append(row)
        self._charges: dict[str, list[int]] = defaultdict(list)
        for transaction, lines in self.entries.items():
            if lines[0]["kind"] == "prediction":
                self._charges[lines[0]["reference"]].append(transaction)
        self.corrections = Corrections(rows, self.entries, errands, verdict.faults)

    def check(self, hold: dict[str, Any]) -> int | None:
        """Return the nano-dollars that the gateway charged for this prediction in the end; None if it is still open.

        Corrections of the clerk come later, and change nothing of what the client was told.
        """
        say = self._verdict.faults.append
        usage, charges = self.usage.get(hold["id"], []), self._charges.get(hold["id"], [])
        if hold["state"] == "open":
            say(f"{hold['id']}: still open")
            return None
        if hold["state"] == "released":
            if usage or charges:
                say(f"{hold['id']}: released, but it has {len(usage)} usage rows and {len(charges)} charges")
            self._verdict.free += 1
            return 0
        cost = hold["cost"]
        if len(usage) != 1 or len(charges) != (1 if cost else 0):
            say(f"{hold['id']}: settled with {len(usage)} usage rows and {len(charges)} charges")
            return int(cost)
        self._check_usage(hold, usage[0])
        if not cost:
            return 0
        lines = self.entries[charges[0]]
        found = sorted((line["account"], line["amount"]) for line in lines)
        payees = cost * hold["payees_bps"] // 10_000  # one payee: the maker of the sample
        shares = [("creator_reserve", payees), ("platform_revenue", cost - payees)]
        expected = sorted([("customer_credit", -cost), *((kind, share) for kind, share in shares if share)])
        if found != expected:
            say(f"{hold['id']}: entries {found}, not {expected}")
        refunded, corrected = self.corrections.check(hold, lines)
        self._verdict.corrected += bool(corrected)
        if refunded:
            if refunded + corrected != cost:
                say(f"{hold['id']}: {refunded} refunded and {corrected} corrected of a charge of {cost}")
            self._verdict.refunded += 1
            return 0
        self._verdict.charged += 1
        self._verdict.charged_nano_usd += cost
        return int(cost)

    def _check_usage(self, hold: dict[str, Any], usage: dict[str, Any]) -> None:
        say = self._verdict.faults.append
        receipt = self._receipt(hold, usage["receipt"])
        if receipt is None:
            return
        completion = receipt["completion_tokens"]
        if hold["delivered_tokens"] is not None:
            completion = min(completion, hold["delivered_tokens"])
        told = (receipt["prompt_tokens"], receipt["cached_tokens"], completion)
        charged = (usage["prompt"], usage["cached"], usage["completion"])
        if told != charged:
            say(f"{hold['id']}: {charged} tokens were charged, receipt and delivery say {told}")
        prompt, cached, completion = charged
        pico = (
            (prompt - cached) * hold["input_price"] + cached * hold["cached_price"] + completion * hold["output_price"]
        )
        gross = -(-(pico + hold["flat_price"] * 1000) * hold["class_bps"] // 10**7)
        cost = min(hold["amount"], gross - min(gross, hold["allowance"]))
        booked = (usage["cost"], hold["cost"])
        if booked != (cost, cost):
            say(f"{hold['id']}: booked {booked}, receipt times price is {cost}")

    def _receipt(self, hold: dict[str, Any], token: str) -> dict[str, Any] | None:
        """Return the claims of a receipt that its signer may have given for exactly this attempt."""
        say = self._verdict.faults.append
        try:
            head, body, signature = token.split(".")
            kid = json.loads(_unbase64(head))["kid"]
            claims: dict[str, Any] = json.loads(_unbase64(body))
            signer = self._keys[kid]
            key = Ed25519PublicKey.from_public_bytes(bytes(signer["receipt_public_key"]))
            key.verify(_unbase64(signature), f"{head}.{body}".encode())
        except (ValueError, KeyError, InvalidSignature) as error:
            say(f"{hold['id']}: charged on a receipt that does not verify ({type(error).__name__})")
            return None
        dispatched = self._keys.get(hold["replica_id"])
        later_boot = (
            dispatched is not None
            and signer["name"] == dispatched["name"]
            and signer["registered_at"] > dispatched["registered_at"]
            and claims["finish_reason"] == "interrupted"
        )
        sane = 0 <= claims["cached_tokens"] <= claims["prompt_tokens"] <= hold["max_prompt_tokens"]
        rules = {
            "prediction": claims["jti"] == hold["id"],
            "attempt": claims["attempt"] == hold["attempt"],
            "replica": claims["replica_id"] == hold["replica_id"],
            "signer": kid == hold["replica_id"] or later_boot,
            "adapter": claims["adapter"] == hold["adapter"] == hold["sold_adapter"],
            "base": claims["base"] == hold["base"] == hold["sold_base"],
            "tokens": sane and 0 <= claims["completion_tokens"] <= hold["max_tokens"],
        }
        for rule in (name for name, kept in rules.items() if not kept):
            say(f"{hold['id']}: charged on a receipt that breaks the rule {rule!r}")
        return claims

    def check_totals(self) -> None:
        """The whole ledger sums to zero, by transaction and by account, and nothing is left on hold."""
        say = self._verdict.faults.append
        for transaction, lines in self.entries.items():
            if total := sum(line["amount"] for line in lines):
                say(f"ledger transaction {transaction} sums to {total}")
        posted: dict[int, int] = defaultdict(int)
        for row in self._rows.entries:
            posted[row["account_id"]] += row["amount"]
        for account in self._rows.accounts:
            if account["posted"] != posted[account["id"]]:
                say(f"account {account['id']}: posted {account['posted']}, its entries sum to {posted[account['id']]}")
            if account["held"]:
                say(f"account {account['id']}: {account['held']} nano-dollars are still held")
        settled = {hold["id"] for hold in self._rows.holds if hold["state"] == "settled"}
        if strangers := set(self.usage) - settled:
            say(f"usage without a settled hold: {sorted(strangers)}")


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
