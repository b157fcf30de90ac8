"""Refusals on pages: beside the field at fault, as a message of the next page, or as JSON for a script."""

from __future__ import annotations

from collections.abc import Mapping

from django import forms
from django.contrib import messages
from django.http import HttpRequest, JsonResponse

from marketplace.accounts.envelope import envelope
from marketplace.accounts.errors import Refusal


def show_in_form(form: forms.Form, refusal: Refusal, *, field_names: Mapping[str, str] | None = None) -> None:
    """Add the refusal to `form`; `field_names` maps a service's argument to the form's field where the two differ.

    Raises the refusal again if it is a fault of the platform.
    """
    _require_presentable(refusal)
    name = (field_names or {}).get(refusal.field or "", refusal.field)
    form.add_error(name if name in form.fields else None, sentence(refusal))


def show_as_message(request: HttpRequest, refusal: Refusal, *, prefix: str) -> None:
    """Show the refusal on the next page, after `prefix`. Raises it again if it is a fault of the platform."""
    _require_presentable(refusal)
    messages.error(request, f"{prefix} {sentence(refusal)}")


def as_json(refusal: Refusal) -> JsonResponse:
    """Answer a page's script with the refusal."""
    return JsonResponse(envelope(refusal, ""), status=refusal.status, headers=refusal.headers)


def sentence(refusal: Refusal) -> str:
    """Return the refusal's message with a capital letter and a full stop."""
    text = refusal.message[:1].upper() + refusal.message[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def _require_presentable(refusal: Refusal) -> None:
    if refusal.status == 500:
        raise refusal
