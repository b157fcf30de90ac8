"""Django app declaration."""

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    name = "marketplace.responses"
    label = "responses"
