"""URLs of the replica-facing API, under `/internal/v1/`."""

from django.urls import path, re_path

from marketplace.vault import views

app_name = "vault"
urlpatterns = [
    path("replicas/challenge", views.challenge),
    path("replicas", views.register),
    path("replicas/<uuid:replica_id>/heartbeat", views.heartbeat),
    path("leases", views.lease),
    re_path(r"^packages/(?P<digest>[0-9a-f]{64})$", views.package),
]
