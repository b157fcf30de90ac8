"""Writes and reads of kept prompts. Everything is asked for by organization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization, User
from marketplace.prompts.models import Prompt
from marketplace.vault.ciphers import cipher_of
from protocol.errors import ProtocolError
from protocol.names import parse_model_name

MAX_PROMPTS = 200  # of one organization
MAX_MODELS = 4  # side by side
MAX_TEXT = 20_000  # characters, of each text


class Texts(msgspec.Struct, frozen=True):
    """The part of a prompt that is encrypted."""

    message: str
    system: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept prompt in the clear."""

    row: Prompt
    texts: Texts


@transaction.atomic
def keep_prompt(*, organization: Organization, by: User | None, name: str, texts: Texts, models: Sequence[str]) -> Kept:
    """Keep a prompt. Raises InvalidInput for a text or model that cannot be, Conflict for a name that is taken."""
    _check(name, texts, models)
    lock_organization(organization.pk)
    if Prompt.objects.filter(organization=organization).count() >= MAX_PROMPTS:
        raise Conflict(f"an organization may keep {MAX_PROMPTS} prompts; delete one first", code="too_many_prompts")
    number = uuid4()
    sealed = cipher_of(organization.pk).seal(number, msgspec.json.encode(texts))
    row = Prompt(
        id=number, organization=organization, created_by=by, name=name.strip(), sealed=sealed, model_names=list(models)
    )
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise Conflict("a prompt of this name is kept already", code="name_taken", field="name") from None
    return Kept(row, texts)


def prompts_of(*, organization: Organization) -> QuerySet[Prompt]:
    """Return the organization's prompts by name, still encrypted."""
    return Prompt.objects.filter(organization=organization).order_by("name", "id")


def open_prompt(*, organization: Organization, prompt_id: UUID) -> Kept | None:
    """Return one prompt of the organization in the clear, or None."""
    row = Prompt.objects.filter(organization=organization, pk=prompt_id).first()
    if row is None:
        return None
    text = cipher_of(organization.pk).open(row.pk, bytes(row.sealed))
    return Kept(row, msgspec.json.decode(text, type=Texts))


def delete_prompt(*, organization: Organization, prompt_id: UUID) -> bool:
    """Delete a prompt. False: it is not the organization's."""
    deleted, _ = Prompt.objects.filter(organization=organization, pk=prompt_id).delete()
    return bool(deleted)


def in_the_clear(organization: Organization, row: dict[str, object]) -> dict[str, object]:
    """Return a row of the table with its texts, for the organization's own copy of its data."""
    found = dict(row)
    sealed, number = found.pop("sealed"), found["id"]
    assert isinstance(sealed, bytes | memoryview) and isinstance(number, UUID)
    return found | msgspec.json.decode(cipher_of(organization.pk).open(number, bytes(sealed)))


def _check(name: str, texts: Texts, models: Sequence[str]) -> None:
    if not 1 <= len(name.strip()) <= 100:
        raise InvalidInput("must have 1 to 100 characters", field="name")
    for field, text in (("message", texts.message), ("system", texts.system)):
        if len(text) > MAX_TEXT or "\x00" in text:
            raise InvalidInput(f"must have at most {MAX_TEXT:,} characters", field=field)
    if not texts.message.strip():
        raise InvalidInput("must not be empty", field="message")
    if not 1 <= len(models) <= MAX_MODELS:
        raise InvalidInput(f"must name 1 to {MAX_MODELS} models", field="models")
    for model in models:
        try:
            parse_model_name(model)
        except ProtocolError:
            raise InvalidInput("must be org/slug or org/slug@version", field="models") from None
