"""Django's configuration of the app."""

from django.apps import AppConfig


class PromptsConfig(AppConfig):
    """Prompts that organizations keep."""

    name = "marketplace.prompts"
    label = "prompts"
