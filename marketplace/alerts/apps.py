"""Django app declaration."""

from django.apps import AppConfig


class AlertsConfig(AppConfig):
    name = "marketplace.alerts"
    label = "alerts"

    def ready(self) -> None:
        """Listen to what billing has to tell."""
        from billing.notices import money_notice
        from marketplace.alerts.money import store_notice

        money_notice.connect(store_notice, dispatch_uid="marketplace.alerts")
