"""Work that the suite's fixtures do once for all tests of a process (tests/conftest.py)."""

from __future__ import annotations

import ssl
from pathlib import Path
from unittest import mock

import httpx
import pytest


def test_clients_of_httpx_share_the_context_of_its_defaults() -> None:
    with httpx.Client(), mock.patch.object(ssl, "create_default_context") as made:
        for _ in range(3):
            httpx.Client().close()
    assert not made.called


def test_certificates_that_the_environment_names_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    httpx.Client().close()
    empty = tmp_path / "empty.pem"
    empty.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(empty))
    with pytest.raises(ssl.SSLError):
        httpx.Client()
