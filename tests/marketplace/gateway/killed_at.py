"""The platform's app in a process that ends itself with -9. KILL_AT is `before` or `after`, and a method."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

from marketplace.config.asgi import application
from marketplace.gateway.books import Books
from marketplace.gateway.http import Client
from marketplace.gateway.kept import Keeper

__all__ = ["application"]
WHEN, CLASS, METHOD = os.environ["KILL_AT"].replace(".", " ").split()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _install() -> None:
    owner = {one.__name__: one for one in (Books, Client, Keeper)}[CLASS]
    original = getattr(owner, METHOD)

    @functools.wraps(original)
    async def deadly(*arguments: Any, **named: Any) -> Any:
        if WHEN == "before":
            _die()
        result = await original(*arguments, **named)
        _die()
        return result

    setattr(owner, METHOD, deadly)


_install()
