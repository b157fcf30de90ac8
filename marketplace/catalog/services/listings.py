"""Models for sale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction

from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization
from marketplace.accounts.names import PLATFORM_SLUG, check_visible, names_the_platform
from marketplace.catalog.licences import CHOICES, MAX_LICENCE_TEXT, OWN
from marketplace.catalog.logos import logo_of
from marketplace.catalog.models import BaseModel, Model

MAX_MODELS_PER_ORGANIZATION = 500
MAX_EXAMPLES = 8
MAX_EXAMPLE_LENGTH = 4000


@dataclass(frozen=True, slots=True)
class ExampleMessage:
    """One message that the playground starts with. `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ListingText:
    """The creator's words about a model. Every field is optional in an update."""

    title: str | None = None
    summary: str | None = None
    card_markdown: str | None = None
    industry: str | None = None
    tags: Sequence[str] | None = None
    visibility: str | None = None
    example_messages: Sequence[ExampleMessage] | None = None
    licence: str | None = None  # one of `licences.CHOICES`, or empty
    licence_text: str | None = None  # of the creator's own
    licence_required: bool | None = None
    gated: bool | None = None
    logo: str | None = None  # the digest of a picture that was kept for this model; empty takes it away


def create_model(*, organization: Organization, slug: str, base_model: BaseModel, text: ListingText) -> Model:
    """Create a listing without a version. Raises InvalidInput, Conflict for a taken slug, NotAllowed past the limit."""
    if text.title is None:
        raise InvalidInput("a model needs a title", code="required", field="title")
    model = Model(organization=organization, slug=slug, base_model=base_model)
    apply_text(model, text)
    with transaction.atomic():
        lock_organization(organization.pk)
        if Model.objects.filter(organization=organization).count() >= MAX_MODELS_PER_ORGANIZATION:
            raise NotAllowed(f"an organization may list {MAX_MODELS_PER_ORGANIZATION} models", code="too_many_models")
        try:
            with transaction.atomic():
                model.save(force_insert=True)
        except IntegrityError:
            raise Conflict(f"{organization.slug}/{slug} exists already", code="slug_taken", field="slug") from None
        audit.record(organization=organization, act="model.created", subject=model.slug)
    return model


def update_model(*, model: Model, text: ListingText) -> Model:
    """Change the fields of `text` that are not None. Raises InvalidInput."""
    changed = apply_text(model, text)
    if changed:
        model.save(update_fields=[*changed, "updated_at"])
    return model


def apply_text(model: Model, text: ListingText) -> list[str]:
    """Set the fields of `text` that are not None, unsaved, and return their names. Raises InvalidInput."""
    changed = {name: value for name, value in asdict(text).items() if value is not None}
    if (tags := changed.get("tags")) is not None:
        changed["tags"] = list(dict.fromkeys(tag.strip().lower() for tag in tags))
    if (examples := changed.get("example_messages")) is not None:
        _check_examples(examples)
    if "title" in changed:
        changed["title"] = check_visible(changed["title"], field="title")
    for name, value in changed.items():
        setattr(model, name, value)
    _check_origin(model)
    if changed.get("licence", OWN) != OWN:  # a known licence has its own text
        model.licence_text = changed["licence_text"] = ""
    _check_admission(model)
    if changed.get("logo") and logo_of(model_id=model.pk, digest=model.logo) is None:
        raise InvalidInput("is no picture that was sent for this model", field="logo")
    clean(model, validate_unique=False)
    return list(changed)


def _check_origin(model: Model) -> None:
    """Raise InvalidInput for another organization's model that is named like the platform."""
    if model.organization.slug != PLATFORM_SLUG:
        for field in ("slug", "title"):
            if names_the_platform(getattr(model, field)):
                raise InvalidInput(
                    "could be taken for the platform's own model; choose another", code="reserved", field=field
                )


def _check_admission(model: Model) -> None:
    """Raise InvalidInput unless licence, text and conditions fit together."""
    if model.licence and model.licence not in CHOICES:
        raise InvalidInput(f"must be empty or one of {', '.join(CHOICES)}", field="licence")
    if len(model.licence_text) > MAX_LICENCE_TEXT:
        raise InvalidInput(f"has at most {MAX_LICENCE_TEXT:,} characters", field="licence_text")
    if model.licence == OWN and not model.licence_text.strip():
        raise InvalidInput("a licence of your own needs its text", code="required", field="licence_text")
    if model.licence_text and model.licence != OWN:
        raise InvalidInput(f"a text belongs to the licence {OWN!r} alone", field="licence_text")
    if model.licence_required and not model.licence:
        raise InvalidInput("name the licence that is to be accepted", field="licence")
    if model.kind == Model.Kind.BASE and (model.licence_required or model.gated):
        raise InvalidInput("a bare base is open to everybody", field="gated" if model.gated else "licence_required")


def _check_examples(examples: Sequence[dict[str, Any]]) -> None:
    if len(examples) > MAX_EXAMPLES:
        raise InvalidInput(f"at most {MAX_EXAMPLES} messages", field="example_messages")
    for example in examples:
        if example["role"] not in ("system", "user", "assistant") or len(example["content"]) > MAX_EXAMPLE_LENGTH:
            raise InvalidInput(
                f"each needs a role (system, user, assistant) and at most {MAX_EXAMPLE_LENGTH} characters",
                field="example_messages",
            )


def clean(instance: models.Model, *, validate_unique: bool = True) -> None:
    """Validate every field of a row. Raises InvalidInput, which names the first one that is wrong."""
    try:
        instance.full_clean(validate_unique=validate_unique, validate_constraints=validate_unique)
    except ValidationError as error:
        field = next(iter(error.message_dict))
        raise InvalidInput(" ".join(error.message_dict[field]), field=field) from None
