"""Django app declaration."""

from django.apps import AppConfig


class PublishingConfig(AppConfig):
    name = "marketplace.publishing"
    label = "publishing"
