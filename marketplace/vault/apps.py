"""Django app declaration."""

from django.apps import AppConfig


class VaultConfig(AppConfig):
    name = "marketplace.vault"
    label = "vault"
