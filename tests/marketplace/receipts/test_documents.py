"""The platform's receipts are what an offline verifier accepts, through refunds and rotations of its key."""

from __future__ import annotations

import time
import uuid

import msgspec
import pytest
from django.core.management import CommandError, call_command

from billing.services import refund_prediction_sync
from marketplace.receipts.charges import charges_of
from marketplace.receipts.errors import NoReceipt
from marketplace.receipts.keys import published_keys, receipt_signer
from marketplace.receipts.selectors import receipt_document
from marketplace.vault.errors import NotBootstrapped
from marketplace.vault.models import PlatformKey
from marketplace.vault.services import rotate_receipt_key
from protocol.proofs.documents import verify_document
from protocol.proofs.errors import ProofRejected
from protocol.proofs.keys import check_continues, read_key_file
from tests.billing.support import PRICE, USAGE, USAGE_COST
from tests.marketplace.receipts.conftest import Market


def test_a_receipt_names_price_cost_split_attempt_and_times(market: Market) -> None:
    charge = market.charge()
    found = verify_document(receipt_document(market.buyer, charge.prediction_id), published_keys()).charge
    assert found.organization_id == str(market.buyer.pk) and found.attempt == 1
    assert found.price.output_micro_usd_per_mtok == PRICE.output_micro_usd_per_mtok
    assert (found.prompt_tokens, found.completion_tokens) == (USAGE.prompt_tokens, USAGE.completion_tokens)
    assert (found.gross_nano_usd, found.cost_nano_usd, found.held_nano_usd) == (USAGE_COST, USAGE_COST, 1_000)
    assert [(part.payee, part.reason, part.nano_usd) for part in found.split] == [
        (str(market.seller.pk), "creator", 35),
        (None, "platform", 9),
    ]
    assert found.charged_at == int(charge.created_at.timestamp()) * 10**6 + charge.created_at.microsecond
    assert found.placed_at > 0 and len(found.request_sha256) == 43


def test_the_same_charge_has_the_same_statement_after_a_refund_which_the_receipt_shows(market: Market) -> None:
    charge = market.charge()
    before = charges_of([charge])[charge.prediction_id].payload()
    refund_prediction_sync(prediction_id=charge.prediction_id, reason="not delivered")
    assert charges_of([charge])[charge.prediction_id].payload() == before
    found = verify_document(receipt_document(market.buyer, charge.prediction_id), published_keys())
    assert found.charged_nano_usd == 0 and found.corrections[0].reason == "not delivered"


def test_a_receipt_is_for_its_own_organization_alone(market: Market) -> None:
    charge = market.charge()
    for organization in (market.seller, market.buyer):
        with pytest.raises(NoReceipt):
            receipt_document(organization, charge.prediction_id if organization is market.seller else uuid.uuid4())


def test_a_charge_of_before_grants_were_kept_has_no_receipt(market: Market) -> None:
    with pytest.raises(NoReceipt):
        receipt_document(market.buyer, market.charge(base="").prediction_id)


def test_a_rotated_key_keeps_what_it_signed_and_the_next_one_is_endorsed(market: Market) -> None:
    charge = market.charge()
    saved = published_keys()
    old = receipt_document(market.buyer, charge.prediction_id)
    successor = rotate_receipt_key()
    newer = read_key_file(msgspec.json.encode(published_keys()))
    check_continues(newer, saved)
    new = receipt_document(market.buyer, charge.prediction_id)
    assert verify_document(old, newer).signed.kid == saved.keys[0].kid
    assert verify_document(new, newer).signed.kid == str(successor.id)
    with pytest.raises(ProofRejected, match="not in this key file"):
        verify_document(new, saved)


def test_a_retired_key_signs_nothing_later(market: Market) -> None:
    charge = market.charge()
    signer = receipt_signer()
    rotate_receipt_key()
    payload = charges_of([charge])[charge.prediction_id].payload()
    forged = type(signer)(signer.pair, int(time.time()) + 60).sign(payload, "intarsia-charge")
    document = msgspec.json.decode(receipt_document(market.buyer, charge.prediction_id))
    with pytest.raises(ProofRejected) as refusal:
        verify_document(msgspec.json.encode({**document, "charge": forged}), published_keys())
    assert refusal.value.rule == "key_not_valid_then"


def test_the_command_rotates_and_says_so(market: Market, capsys: pytest.CaptureFixture[str]) -> None:
    first = PlatformKey.objects.get(purpose="receipt")
    call_command("rotate_receipt_key")
    assert f"{first.id} is retired" in capsys.readouterr().out
    assert len(published_keys().keys) == 2


@pytest.mark.django_db
def test_without_a_key_nothing_is_published_or_rotated() -> None:
    with pytest.raises(NotBootstrapped):
        published_keys()
    with pytest.raises(CommandError, match="bootstrap_vault"):
        call_command("rotate_receipt_key")
