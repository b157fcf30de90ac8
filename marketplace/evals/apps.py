from django.apps import AppConfig


class EvalsConfig(AppConfig):
    name = "marketplace.evals"
    label = "evals"
