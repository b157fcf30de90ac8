"""A receipt document proves a charge offline, and every change of it is refused by the rule that it breaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from protocol.proofs.charges import Charge, ChargePrice, Share, shares_of
from protocol.proofs.documents import MAX_DOCUMENT_BYTES, verify_document
from protocol.proofs.errors import ProofRejected
from tests.protocol.proofs import made


def rejected(data: bytes, keys: Any = None) -> str:
    """The rule by which a document is refused."""
    with pytest.raises(ProofRejected) as refusal:
        verify_document(data, keys or made.key_file())
    return refusal.value.rule


def test_a_document_names_price_cost_class_and_split_and_proves_them() -> None:
    found = verify_document(made.document(), made.key_file())
    assert found.charge == made.charge()
    assert (found.charge.latency_class, found.charge.class_bps, found.charge.cost_nano_usd) == ("batch", 5_000, 19_999)
    assert [part.nano_usd for part in found.charge.split] == [15_553, 446, 4_000]
    assert found.charged_nano_usd == 18_999 and found.signed.kid == made.OLD_ID
    assert found.replica_receipt.completion_tokens == 60 and found.charge.completion_tokens == 50
    assert found.head is not None and (found.head.day, found.head.size) == ("2025-11-24", 5)


def test_a_document_of_before_its_day_is_published_proves_the_charge_alone() -> None:
    found = verify_document(made.document(inclusion=None, corrections=()), made.key_file())
    assert found.head is None and found.charged_nano_usd == 19_999


def test_a_key_signs_within_its_time_alone() -> None:
    rotated = made.key_file(rotated=True)
    assert verify_document(made.document(), rotated).signed.kid == made.OLD_ID
    early = made.signed(made.charge(), made.NEW, made.NEW_ID)  # signed before the new key began
    assert rejected(made.document(charge=early), rotated) == "key_not_valid_then"
    assert rejected(made.document(charge=early)) == "unknown_key"
    ended = made.key_file(keys=(msgspec.structs.replace(made.key_file().keys[0], valid_until=made.NOW - 2),))
    assert rejected(made.document(), ended) == "key_not_valid_then"


def test_a_signature_of_another_key_under_a_known_name_is_refused() -> None:
    assert rejected(made.document(charge=made.signed(made.charge(), made.NEW))) == "signature"


def test_a_statement_of_one_kind_does_not_pass_for_another() -> None:
    assert rejected(made.document(charge=made.signed(made.correction(1)))) == "malformed"
    assert rejected(made.document(corrections=(made.signed(made.charge()),))) == "malformed"


PRICE = made.charge().price
SPLIT = made.charge().split


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("cost", {"cost_nano_usd": 20_000}),
        ("cost", {"gross_nano_usd": 21_752}),
        ("cost", {"allowance_nano_usd": 0}),
        ("cost", {"held_nano_usd": 19_998}),
        ("cost", {"class_bps": 10_000}),
        ("cost", {"cached_tokens": 101}),
        ("cost", {"price": msgspec.structs.replace(PRICE, output_micro_usd_per_mtok=601_000)}),
        ("split", {"split": (msgspec.structs.replace(SPLIT[0], nano_usd=15_554), *SPLIT[1:])}),
        ("split", {"split": (SPLIT[0], msgspec.structs.replace(SPLIT[1], nano_usd=445), SPLIT[2])}),
        ("split", {"split": (*SPLIT[:2], msgspec.structs.replace(SPLIT[2], nano_usd=4_001))}),
        ("split", {"split": SPLIT[:2]}),
        ("prediction", {"prediction_id": made.MODEL}),
        ("attempt", {"attempt": 1}),
        ("adapter", {"adapter": "00" * 32}),
        ("base", {"base": "00" * 32}),
        ("completion_tokens", {"max_completion_tokens": 59}),
        ("signer", {"signer_key": None}),
        ("signature", {"signer_key": made.public(made.NEW)}),
        ("tokens", {"replica_receipt": made.replica_receipt(completion_tokens=49)}),
        ("tokens", {"replica_receipt": made.replica_receipt(prompt_tokens=99)}),
    ],
)
def test_a_charge_that_does_not_follow_from_its_terms_is_refused_though_it_is_signed(
    rule: str, changes: dict[str, Any]
) -> None:
    assert rejected(made.document(made.charge(**changes), corrections=())) == rule


def test_a_charge_is_never_more_than_was_held() -> None:
    capped = made.charge(
        held_nano_usd=10,
        cost_nano_usd=10,
        split=(Share(payee=None, basis_points=10_000, reason="platform", nano_usd=10),),
    )
    assert verify_document(made.document(capped, corrections=()), made.key_file()).charged_nano_usd == 10


@pytest.mark.parametrize(
    "given_back",
    [
        (made.correction(20_000),),
        (made.correction(10_000), made.correction(10_001)),
        (made.correction(1_000), made.correction(1_000)),
        (made.correction(1, prediction_id=made.MODEL),),
    ],
)
def test_corrections_beyond_the_charge_or_twice_or_of_another_one_are_refused(given_back: Any) -> None:
    assert rejected(made.document(corrections=tuple(map(made.signed, given_back)))) == "corrections"


def test_a_charge_in_another_tree_or_place_is_not_included() -> None:
    assert rejected(made.document(inclusion=made.inclusion(made.charge(attempt=1)))) == "inclusion"
    shown = msgspec.structs.replace(made.inclusion(made.charge()), index=3)
    assert rejected(made.document(inclusion=shown)) == "inclusion"
    assert rejected(made.document(inclusion=made.inclusion(made.charge(), size=4, root="A" * 43))) == "inclusion"


def _without_format(value: dict[str, Any]) -> Any:
    return {**value, "format": "intarsia/receipt/v2"}


@pytest.mark.parametrize(
    "change",
    [
        lambda value: [],
        lambda value: {**value, "extra": 1},
        lambda value: {**value, "charge": "a.b"},
        lambda value: {**value, "charge": "a" * 40_000},
        _without_format,
    ],
)
def test_a_file_that_is_no_receipt_is_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    assert rejected(json.dumps(change(json.loads(made.document()))).encode()) == "malformed"


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b" " * (MAX_DOCUMENT_BYTES + 1)])
def test_bytes_of_any_kind_are_refused(data: bytes) -> None:
    assert rejected(data) == "malformed"


def test_shares_are_whole_and_the_largest_remainder_decides() -> None:
    assert shares_of(0, [5_000]) == [0] and shares_of(7, []) == []
    assert shares_of(3, [5_000, 5_000]) == [2, 1]  # a tie: the first place
    assert shares_of(19_999, [7_777, 223]) == [15_553, 446]


def test_one_charge_has_one_payload() -> None:
    again = msgspec.json.decode(made.charge().payload(), type=Charge)
    assert again.payload() == made.charge().payload()
    assert isinstance(again.price, ChargePrice)
