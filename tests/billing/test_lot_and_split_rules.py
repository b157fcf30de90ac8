"""Raw SQL against the rules of lots and splits: each attack is refused by the database itself."""

from __future__ import annotations

import pytest

from billing.models import Hold
from tests.billing.test_database_rules import opening, refused

pytestmark = pytest.mark.django_db


def test_credit_without_its_lot_or_from_that_of_another(books: dict[str, int]) -> None:
    add = "INSERT INTO billing_entry (transaction_id, account_id, amount, lot_id) VALUES "
    now = "currval('billing_ledgertransaction_id_seq')"
    lot = f"(SELECT id FROM billing_lot WHERE account_id = {books['customer']})"
    refused(
        "names no lot",
        opening(),
        f"{add} ({now}, {books['customer']}, 5, NULL), ({now}, {books['promotion']}, -5, NULL)",
    )
    refused(
        "names no lot",
        opening(),
        f"{add} ({now}, {books['creator']}, 5, {lot}), ({now}, {books['promotion']}, -5, NULL)",
    )
    rest = f"UPDATE billing_lot SET remaining = remaining + 1 WHERE id = {lot}"
    refused("through entries alone", rest)
    refused("terms of a lot are fixed", f"UPDATE billing_lot SET opening = 5 WHERE id = {lot}")
    refused(
        "starts empty",
        f"INSERT INTO billing_lot (account_id, kind, opening, transaction_id) "
        f"SELECT account_id, kind, 5, transaction_id FROM billing_lot WHERE id = {lot}",
    )
    refused("never deleted", f"DELETE FROM billing_lot WHERE id = {lot}")


def test_a_split_that_is_not_whole_grows_or_changes(books: dict[str, int]) -> None:
    digest = "INSERT INTO billing_split (digest) VALUES ('\\x01')"
    part = "INSERT INTO billing_splitpart (split_id, place, basis_points, reason) VALUES ({}, {}, {}, 'platform')"
    refused("are not 10,000", digest)
    refused("are not 10,000", digest, part.format("currval('billing_split_id_seq')", 1, 9_999))
    refused(
        "platform_is_nobody",
        digest,
        part.format("currval('billing_split_id_seq')", 1, 9_999).replace("'platform'", "'creator'"),
    )
    split = Hold.objects.values_list("split_id", flat=True)[0]
    refused("append-only", f"UPDATE billing_splitpart SET basis_points = 1 WHERE split_id = {split}")
    refused("append-only", f"DELETE FROM billing_split WHERE id = {split}")


@pytest.mark.django_db(transaction=True)  # a split closes when it commits
def test_a_part_that_joins_a_closed_split(books: dict[str, int]) -> None:
    split = Hold.objects.values_list("split_id", flat=True)[0]
    refused(
        "closed or unknown",
        f"INSERT INTO billing_splitpart (split_id, place, basis_points, reason) VALUES ({split}, 9, 0, 'platform')",
    )
