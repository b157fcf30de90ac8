"""The address at which the keys of receipts are found by convention (RFC 8615)."""

from django.urls import path

from marketplace.receipts import views

app_name = "receipts"
urlpatterns = [path("intarsia-keys.json", views.keys, name="keys")]
