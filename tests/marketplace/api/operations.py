"""Every operation of the control API, by enumeration of its URL map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

from django.urls import reverse

from marketplace.api import urls
from marketplace.api.views.base import ControlView

# In place of an id; all other ids are of nothing.
ARGUMENTS: dict[str, Any] = {
    "org": "acme",
    "slug": "triage",
    "day": date(2026, 1, 31),
    "dispute_id": "dp_1",
    "incident_id": 1,
    "session_id": 1,
    "customer_id": 1,
    "delivery_id": 1,
    "name": "r1",
    "kind": "model.drift",
}


@dataclass(frozen=True)
class Operation:
    """One method of one route; HEAD only where a view has one of its own and does not answer it by GET."""

    method: str
    name: str
    view: type[ControlView]
    arguments: tuple[str, ...]

    def path(self, **known: Any) -> str:
        """Return its address, of things that do not exist unless `known`."""
        values = ARGUMENTS | known
        return reverse(f"api:{self.name}", kwargs={name: values.get(name, UUID(int=1)) for name in self.arguments})

    def declared(self) -> frozenset[str]:
        """Return what the view says that it needs, in the words of scopes.py."""
        method = "GET" if self.method == "HEAD" else self.method
        if self.view.staff_only:
            return frozenset({"staff"})
        if method in self.view.public:
            return frozenset({"public"})
        return frozenset(self.view.scopes.get(method, ())) or frozenset({"any"})


def operations() -> Iterator[Operation]:
    """Return every operation."""
    for pattern in urls.urlpatterns:
        if not pattern.name:
            continue
        view = pattern.callback.view_class  # type: ignore[attr-defined]
        for method in ("get", "head", "post", "put", "patch", "delete"):
            if hasattr(view, method):
                yield Operation(method.upper(), pattern.name, view, tuple(pattern.pattern.converters))
