"""Only allauth."""

from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def home(request: HttpRequest) -> HttpResponse:
    """Where a sign-in leads."""
    return HttpResponse("home")


urlpatterns = [
    path("accounts/", include("allauth.account.urls")),
    path("", include(([path("", home, name="dashboard")], "web"))),
]
