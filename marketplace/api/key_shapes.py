"""Shapes of API keys. Each reads its row by `source`, so no function copies rows into dicts.

Comments, not docstrings: a serializer's docstring becomes part of the public schema.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from billing.limited_keys import budget_of
from billing.models import BudgetNode
from marketplace.accounts.key_limits import MAX_MODEL_LENGTH, MAX_MODELS, MAX_NETWORK_LENGTH, MAX_NETWORKS
from marketplace.accounts.models import ApiKey
from marketplace.guards.policies import ACTIONS, KINDS


class Budget(serializers.Serializer):
    monthly_limit_nano_usd = serializers.IntegerField(allow_null=True)
    total_limit_nano_usd = serializers.IntegerField(allow_null=True)
    spent_this_month_nano_usd = serializers.IntegerField(source="spent_in_current_month_nano_usd")
    spent_total_nano_usd = serializers.IntegerField()


class LineBudget(Budget):  # the budget that a key shares with its rotations
    def get_attribute(self, instance: ApiKey) -> BudgetNode | None:
        """Return the budget of the key's line."""
        return budget_of(instance)


class GuardsField(serializers.DictField):
    """A policy about personal data: what is done about each kind that does not pass."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(child=serializers.ChoiceField(["pass", *ACTIONS]), **settings)


class NetworksField(serializers.ListField):
    """Networks that a key is used from."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("help_text", "networks that it is used from, IPv4 and IPv6; empty: all")
        child = serializers.CharField(max_length=MAX_NETWORK_LENGTH)
        super().__init__(child=child, max_length=MAX_NETWORKS, **settings)


class ModelsField(serializers.ListField):
    """Models that a key may call."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("help_text", "models that it may call, as organization/model; empty: all")
        super().__init__(child=serializers.CharField(max_length=MAX_MODEL_LENGTH), max_length=MAX_MODELS, **settings)


class Key(serializers.Serializer):  # shows an ApiKey
    id = serializers.UUIDField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    created_by = serializers.EmailField(source="created_by.email", allow_null=True, help_text="null: they have left")
    networks = NetworksField(source="allowed_networks")
    models = ModelsField(source="allowed_models")
    guards = GuardsField(help_text=f"what is done about personal data: kinds are {', '.join(KINDS)}")
    budget = LineBudget(
        allow_null=True, help_text="shared by all rotations of the key; null: they may spend what the wallet holds"
    )


class KeyText(serializers.CharField):
    """The key itself, which no row holds: the view hands it over as `text` in the context."""

    def get_attribute(self, instance: Any) -> str:
        """Return the text from the context."""
        return str(self.context["text"])


class NewKey(Key):
    key = KeyText(help_text="The key itself. Shown this once, stored nowhere.")
    organization = serializers.CharField(source="organization.slug")
