"""The platform's internal API and a tiny model, for tests of a real replica."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from django.core.asgi import get_asgi_application

from marketplace.vault import services
from tests.together.tiny import Tiny, shared_tiny


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    """One model for all: nothing writes to its folders."""
    return shared_tiny()


@pytest.fixture
def platform_url(transactional_db: None) -> Iterator[str]:
    """The platform's internal API in this process, under ASGI as in production."""
    services.bootstrap_platform_keys()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(get_asgi_application(), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
