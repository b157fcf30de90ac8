"""Addresses of the device grant (RFC 8628), under the names by which allauth asks for them. No other grant is open."""

from django.urls import include, path

from marketplace.web.views import device_login

_grant = [
    path("device", device_login.device, name="device_authorization"),
    path("oauth/device/code", device_login.device_code, name="device_code"),
    path("oauth/token", device_login.token, name="token"),
]

app_name = "idp"
urlpatterns = [path("", include((_grant, "oidc")))]
