"""Addresses for readers elsewhere: whole ones, at the platform's public address."""

from __future__ import annotations

from django import template
from django.conf import settings
from django.urls import reverse

register = template.Library()


@register.simple_tag
def site_address(path: str) -> str:
    """Return the whole address of a path on this site."""
    return f"{settings.PUBLIC_URL}{path}"


@register.simple_tag
def site_url(name: str) -> str:
    """Return the whole address of a route without parameters."""
    return f"{settings.PUBLIC_URL}{reverse(name)}"
