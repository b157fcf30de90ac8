"""The web process: one ASGI callable. `/v1/*` goes to the gateway, everything else to Django.

The gateway is a raw ASGI app because a thousand concurrent streams through Django's middleware cost twenty times
the time to first byte (see docs/structure.md).
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings")

from django.core.asgi import get_asgi_application

_django = get_asgi_application()

from marketplace.gateway.app import Gateway  # noqa: E402  needs the app registry

_gateway = Gateway()


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Dispatch one connection by path; the lifespan belongs to the gateway, which owns the async pools."""
    if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"].startswith("/v1/")):
        await _gateway(scope, receive, send)
    else:
        await _django(scope, receive, send)
