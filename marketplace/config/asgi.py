"""The web process: one ASGI callable. `/v1/*` and the links of replicas go to the gateway, everything else to Django.

The gateway is a raw ASGI app because a thousand concurrent streams through Django's middleware cost twenty times
the time to first byte (see docs/structure.md).
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, cast

from sealed_weights.process import keep_memory_private

gc.disable()  # modules stay: collecting while they load costs a tenth of the start
keep_memory_private()  # before the settings read a secret
# Libraries load these where they find them, for parts that no web process uses: test clients, figures of Valkey. They
# are there for other processes, and would cost a twentieth of the start.
_UNUSED = tuple(name for name in ("jinja2", "opentelemetry") if name not in sys.modules)
sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]  # None: as if it were not installed
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings")

from django.conf import settings  # noqa: E402
from django.core.asgi import get_asgi_application  # noqa: E402
from django.urls import get_resolver  # noqa: E402
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware  # noqa: E402

_application = get_asgi_application()

from marketplace.api.body_limit import App, BodyLimit  # noqa: E402  these need the app registry
from marketplace.api.page_shares import STATEMENT_SECONDS, PageShares  # noqa: E402
from marketplace.catalog.search.meaning import meaning  # noqa: E402
from marketplace.gateway.app import Gateway  # noqa: E402
from marketplace.gateway.fleet.endpoint import PATH as FLEET_LINKS  # noqa: E402

# Django spools a request body to disk before any view can refuse it: the limit has to stand in front.
_django = PageShares(BodyLimit(cast(App, _application)))
_gateway = Gateway()
_options = cast(dict[str, Any], settings.DATABASES["default"]["OPTIONS"])  # of this kind of process alone
# Beside what is asked of connections already, the role of tests among it.
_options["options"] = f"{_options.get('options', '')} -c statement_timeout={STATEMENT_SECONDS}s".strip()
_ = get_resolver().url_patterns  # loads the views now, not at the first request
for name in _UNUSED:
    del sys.modules[name]  # whoever needs it later finds it
gc.freeze()
gc.enable()


async def dispatch(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Dispatch one connection by path; the lifespan belongs to the gateway, which owns the async pools."""
    if scope["type"] == "lifespan":
        meaning.warm_up()  # beside the start of the rest, so that the first search is as quick as the next
    if scope["type"] == "lifespan" or scope["path"].startswith("/v1/") or scope["path"] in ("/healthz", FLEET_LINKS):
        await _gateway(scope, receive, send)
    else:
        await _django(scope, receive, send)


# The server itself runs with --no-proxy-headers: it would believe X-Forwarded-For from this machine by default.
application: Any = (
    ProxyHeadersMiddleware(cast(Any, dispatch), [str(network) for network in settings.ENV.trusted_proxies])
    if settings.ENV.trusted_proxies
    else dispatch
)
