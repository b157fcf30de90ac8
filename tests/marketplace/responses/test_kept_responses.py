"""Kept responses: sealed for their own id, in the organization's copy of its data, and gone with the organization."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from marketplace.privacy.services import erase_organization
from marketplace.privacy.tables import EXPORTED
from marketplace.responses import packing
from marketplace.responses.models import StoredResponse
from marketplace.responses.tasks import forget_responses
from marketplace.vault.ciphers import cipher_of
from marketplace.vault.services import bootstrap_platform_keys
from sealed_weights import AuthenticationError
from tests.marketplace.catalog.factories import make_organization

pytestmark = pytest.mark.django_db


def test_a_kept_response_opens_for_its_organization_and_id_alone_and_ends_with_it() -> None:
    bootstrap_platform_keys()
    mine, other = make_organization("mine"), make_organization("other")
    cipher, response_id = cipher_of(mine.pk), uuid4()
    content = packing.pack([{"type": "message", "content": "secret"}], {"id": "resp_x"})
    sealed = packing.seal(cipher, response_id, content)
    assert b"secret" not in sealed
    for wrong, its_id in ((cipher, uuid4()), (cipher_of(other.pk), response_id)):
        with pytest.raises(AuthenticationError):
            packing.unseal(wrong, its_id, sealed)
    with pytest.raises(AuthenticationError):
        cipher.open(response_id, sealed)  # as the answer of the same prediction, kept for a retry

    tomorrow = timezone.now() + timedelta(days=1)
    StoredResponse.objects.create(
        id=response_id, organization_id=mine.pk, sealed=sealed, size=len(content), expires_at=tomorrow
    )
    (table,) = [one for one in EXPORTED if one.name == "responses_storedresponse"]
    (row,) = table.rows(mine).values(*table.columns)
    assert table.opened is not None and not table.rows(other).exists()
    opened = table.opened(mine, row)
    assert opened["input"] == [{"type": "message", "content": "secret"}] and "sealed" not in opened
    assert forget_responses() == 0
    erase_organization(organization=mine, by=None)
    assert not StoredResponse.objects.exists()
