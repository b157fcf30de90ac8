"""URLs of the replica-facing API, under `/internal/v1/`."""

from django.urls import path, re_path

from marketplace.vault import views
from protocol.names import DIGEST

app_name = "vault"
urlpatterns = [
    path("replicas/enrolment", views.enrol),
    path("replicas/challenge", views.challenge),
    path("replicas", views.register),
    path("replicas/<uuid:replica_id>/heartbeat", views.heartbeat),
    path("replicas/<uuid:replica_id>/hand-over", views.hand_over),
    path("demand", views.demand),
    path("leases", views.lease),
    re_path(rf"^packages/(?P<digest>{DIGEST})/url\Z", views.package_url),
    re_path(rf"^packages/(?P<digest>{DIGEST})\Z", views.package),
]
