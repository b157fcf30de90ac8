"""Output shapes that several operations share, and the functions that fill them from rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rest_framework import serializers

from billing.models import KeyBudget
from marketplace.accounts.models import ApiKey, Membership, Organization
from marketplace.api.budgets import budget_of, spent_this_month
from marketplace.api.fields import Base64UrlField
from marketplace.catalog import selectors as catalog_selectors
from marketplace.catalog.models import BaseModel, Evaluation, Model, Price, Version
from marketplace.vault.models import SigningKey
from sealed_weights.wrap import fingerprint


class Organizations(serializers.Serializer):
    id = serializers.UUIDField()
    slug = serializers.CharField()
    name = serializers.CharField()
    role = serializers.CharField(allow_null=True)


class Budget(serializers.Serializer):
    monthly_limit_nano_usd = serializers.IntegerField(allow_null=True)
    total_limit_nano_usd = serializers.IntegerField(allow_null=True)
    spent_this_month_nano_usd = serializers.IntegerField()
    spent_total_nano_usd = serializers.IntegerField()


class Key(serializers.Serializer):
    id = serializers.UUIDField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    budget = Budget(allow_null=True, help_text="null: the key may spend what the wallet holds")


class NewKey(Key):
    key = serializers.CharField(help_text="The key itself. Shown this once, stored nowhere.")
    organization = serializers.CharField()


class CreatorSigningKey(serializers.Serializer):
    id = serializers.UUIDField()
    public_key = Base64UrlField()
    created_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)


class Base(serializers.Serializer):
    name = serializers.CharField()
    fingerprint = serializers.CharField()
    context_length = serializers.IntegerField()


class BaseWithConfig(Base):
    config = serializers.DictField()


class PriceOut(serializers.Serializer):
    input_micro_usd_per_mtok = serializers.IntegerField()
    cached_input_micro_usd_per_mtok = serializers.IntegerField()
    output_micro_usd_per_mtok = serializers.IntegerField()
    per_prediction_nano_usd = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class EvaluationOut(serializers.Serializer):
    version = serializers.IntegerField()
    dataset = serializers.CharField()
    rows = serializers.IntegerField()
    correct = serializers.IntegerField()
    base_correct = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class ExampleMessageOut(serializers.Serializer):
    role = serializers.ChoiceField(["system", "user", "assistant"])
    content = serializers.CharField(max_length=4000, trim_whitespace=False)


class ModelOut(serializers.Serializer):
    id = serializers.UUIDField()
    name = serializers.CharField(help_text="org/slug: what `model` is in a request to /v1")
    organization = serializers.CharField()
    organization_id = serializers.UUIDField()
    slug = serializers.CharField()
    kind = serializers.CharField()
    base = Base()
    title = serializers.CharField()
    summary = serializers.CharField()
    industry = serializers.CharField()
    tags = serializers.ListField(child=serializers.CharField())
    visibility = serializers.CharField()
    price = PriceOut(allow_null=True)
    newest_version = serializers.IntegerField(allow_null=True)
    evaluation = EvaluationOut(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class ModelPage(ModelOut):
    card_markdown = serializers.CharField()
    example_messages = ExampleMessageOut(many=True)


class VersionOut(serializers.Serializer):
    id = serializers.UUIDField()
    model = serializers.CharField()
    model_id = serializers.UUIDField()
    number = serializers.IntegerField()
    state = serializers.CharField()
    changelog = serializers.CharField()
    package_digest = serializers.CharField(allow_null=True)
    package_size = serializers.IntegerField()
    base_fingerprint = serializers.CharField()
    created_at = serializers.DateTimeField()
    published_at = serializers.DateTimeField(allow_null=True)


class OwnVersion(VersionOut):
    creator_id = serializers.UUIDField()
    uploaded_bytes = serializers.IntegerField()
    report = serializers.DictField(help_text="What verification measured, or `refusal: {field, rule, message}`")
    state_changed_at = serializers.DateTimeField()


class IntakeKey(serializers.Serializer):
    public_key = Base64UrlField(help_text="HPKE MLKEM768-X25519; data keys are wrapped to it")
    fingerprint = serializers.CharField(help_text="64 hex digits; clients pin it")


class StartedVersion(OwnVersion):
    base_config = serializers.DictField()
    intake_key = IntakeKey()
    upload_url = serializers.CharField()


def organization_data(organization: Organization, role: str | None) -> dict[str, Any]:
    return {"id": organization.id, "slug": organization.slug, "name": organization.name, "role": role}


def membership_data(memberships: Iterable[Membership]) -> list[dict[str, Any]]:
    return [organization_data(membership.organization, membership.role) for membership in memberships]


def key_data(key: ApiKey) -> dict[str, Any]:
    budget = budget_of(key)
    return {
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "scopes": key.scopes,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
        "budget": budget_data(budget) if budget else None,
    }


def budget_data(budget: KeyBudget) -> dict[str, Any]:
    return {
        "monthly_limit_nano_usd": budget.monthly_limit_nano_usd,
        "total_limit_nano_usd": budget.total_limit_nano_usd,
        "spent_this_month_nano_usd": spent_this_month(budget),
        "spent_total_nano_usd": budget.spent_total_nano_usd,
    }


def new_key_data(key: ApiKey, text: str) -> dict[str, Any]:
    return {**key_data(key), "organization": key.organization.slug, "key": text}


def signing_key_data(key: SigningKey) -> dict[str, Any]:
    return dict(CreatorSigningKey(key).data)


def base_data(base: BaseModel) -> dict[str, Any]:
    return {"name": base.name, "fingerprint": base.fingerprint, "context_length": base.context_length}


def price_data(price: Price) -> dict[str, Any]:
    return dict(PriceOut(price).data)


def evaluation_data(evaluation: Evaluation, version: Version) -> dict[str, Any]:
    return {
        "version": version.number,
        "dataset": evaluation.dataset,
        "rows": evaluation.rows,
        "correct": evaluation.correct,
        "base_correct": evaluation.base_correct,
        "created_at": evaluation.created_at,
    }


def model_data(model: Model) -> dict[str, Any]:
    """`model` as `catalog.selectors.listed` loads it."""
    facts = catalog_selectors.facts_of(model)
    evaluation = facts.evaluation
    return {
        "id": model.id,
        "name": model.full_name,
        "organization": model.organization.slug,
        "organization_id": model.organization_id,
        "slug": model.slug,
        "kind": model.kind,
        "base": base_data(model.base_model),
        "title": model.title,
        "summary": model.summary,
        "industry": model.industry,
        "tags": model.tags,
        "visibility": model.visibility,
        "price": price_data(facts.price) if facts.price else None,
        "newest_version": facts.newest.number if facts.newest else None,
        "evaluation": evaluation_data(evaluation, facts.newest) if evaluation and facts.newest else None,
        "created_at": model.created_at,
        "updated_at": model.updated_at,
    }


def model_page_data(model: Model) -> dict[str, Any]:
    return {**model_data(model), "card_markdown": model.card_markdown, "example_messages": model.example_messages}


def version_data(version: Version) -> dict[str, Any]:
    """What anybody may know of a published version. The report names tensors and shapes: it is the creator's."""
    return {
        "id": version.id,
        "model": version.model.full_name,
        "model_id": version.model_id,
        "number": version.number,
        "state": version.state,
        "changelog": version.changelog,
        "package_digest": version.package_digest,
        "package_size": version.package_size,
        "base_fingerprint": version.model.base_model.fingerprint,
        "created_at": version.created_at,
        "published_at": version.published_at,
    }


def own_version_data(version: Version, *, uploaded_bytes: int) -> dict[str, Any]:
    return {
        **version_data(version),
        "creator_id": version.model.organization_id,
        "uploaded_bytes": uploaded_bytes,
        "report": version.report,
        "state_changed_at": version.state_changed_at,
    }


def intake_key_data(public_key: bytes) -> dict[str, Any]:
    return {"public_key": Base64UrlField().to_representation(public_key), "fingerprint": fingerprint(public_key)}
