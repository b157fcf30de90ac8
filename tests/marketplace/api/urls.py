"""Only the control API."""

from django.urls import include, path

urlpatterns = [path("api/v1/", include("marketplace.api.urls"))]
