"""Work that the suite's fixtures do once for all tests of a process (tests/conftest.py)."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest


def test_clients_of_httpx_share_the_context_of_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    with httpx.Client():
        made: list[object] = []
        create = ssl.create_default_context
        monkeypatch.setattr(
            ssl, "create_default_context", lambda *args, **named: made.append(1) or create(*args, **named)
        )
        for _ in range(3):
            httpx.Client().close()
        assert made == []


def test_a_client_with_certificates_of_its_own_shares_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with httpx.Client(), pytest.raises(ssl.SSLError):
        empty = tmp_path / "empty.pem"
        empty.touch()
        httpx.Client(verify=ssl.create_default_context(cafile=str(empty)))
    monkeypatch.setenv("SSL_CERT_FILE", str(empty))
    with pytest.raises(ssl.SSLError):
        httpx.Client()
