"""The internal API alone, so that its tests depend on no other app's pages."""

from django.urls import include, path

urlpatterns = [path("internal/v1/", include("marketplace.vault.urls"))]
