"""URLs served by Django. `/v1/` never arrives here: asgi.py hands it to the gateway."""

from django.urls import include, path

from marketplace.config.metrics import metrics
from marketplace.gateway.farewells import goodbye

urlpatterns = [
    path("accounts/", include("allauth.account.urls")),
    path("accounts/2fa/", include("allauth.mfa.urls")),
    path("", include("marketplace.config.device_urls")),
    path("api/v1/", include("marketplace.api.urls")),
    path(".well-known/", include("marketplace.receipts.urls")),
    path("internal/v1/replicas/<uuid:replica_id>/goodbye", goodbye),
    path("internal/v1/", include("marketplace.vault.urls")),
    path("metrics", metrics),
    path("webhooks/stripe", include("billing.urls")),
    path("", include("marketplace.web.urls")),
]
