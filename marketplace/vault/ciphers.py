"""The cipher of an organization: what the platform keeps of its prompts and answers is encrypted with its own key."""

from __future__ import annotations

from uuid import UUID

from marketplace.vault.answer_keys import AnswerCipher, new_answer_key, open_answer_key
from marketplace.vault.models import AnswerKey


def cipher_of(organization_id: UUID) -> AnswerCipher:
    """Return the cipher of an organization, whose key is made where there is none."""
    found = AnswerKey.objects.filter(pk=organization_id).first()
    if found is None:
        made = AnswerKey(organization_id=organization_id, wrapped_key=new_answer_key(organization_id))
        AnswerKey.objects.bulk_create([made], ignore_conflicts=True)
        found = AnswerKey.objects.get(pk=organization_id)
    return open_answer_key(bytes(found.wrapped_key), organization_id)
