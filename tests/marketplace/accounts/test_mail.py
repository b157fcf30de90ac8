"""Mail leaves as EMAIL_URL says: over real SMTP, to a folder, or not at all."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest
from django.test import Client, override_settings

from marketplace.accounts.models import User
from marketplace.config.mail import MailError, parse_mail
from tests.marketplace.catalog.factories import PASSWORD

SITE = "https://intarsia.example"


class _Conversation(socketserver.StreamRequestHandler):
    """As much of SMTP (RFC 5321) as a client needs to hand over mails."""

    def handle(self) -> None:
        """Answer one connection."""
        self.wfile.write(b"220 double\r\n")
        while line := self.rfile.readline():
            verb = line[:4].upper()
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.mails.append(b"".join(lines))  # type: ignore[attr-defined]
            self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                return


@pytest.fixture
def server() -> Iterator[socketserver.TCPServer]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Conversation) as found:
        found.daemon_threads = True
        found.mails = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.mark.django_db
def test_a_verification_mail_arrives_at_a_real_smtp_server(server: socketserver.TCPServer) -> None:
    found = parse_mail(f"smtp://127.0.0.1:{server.server_address[1]}", debug=False, public_url=SITE)
    with override_settings(EMAIL_BACKEND=found.backend, EMAIL_HOST=found.host, EMAIL_PORT=found.port):
        Client().post("/accounts/signup/", {"email": "ada@example.com", "password1": PASSWORD})
    (raw,) = server.mails  # type: ignore[attr-defined]
    received = message_from_bytes(raw, policy=policy.default)
    assert isinstance(received, EmailMessage)
    assert received["From"] == "Intarsia <no-reply@localhost>" and received["To"] == "ada@example.com"
    assert "http://localhost:8000/accounts/confirm-email/" in received.get_content()


@pytest.mark.django_db
def test_a_mail_server_that_is_away_keeps_nobody_from_signing_up(caplog: pytest.LogCaptureFixture) -> None:
    found = parse_mail("smtp://127.0.0.1:9", debug=False, public_url=SITE)
    client = Client()
    with override_settings(EMAIL_BACKEND=found.backend, EMAIL_HOST=found.host, EMAIL_PORT=found.port):
        answer = client.post("/accounts/signup/", {"email": "ada@example.com", "password1": PASSWORD})
    assert answer.status_code == 302 and User.objects.count() == 1
    assert "could not be sent" in client.get("/dashboard/").content.decode()
    assert "was not sent: ConnectionRefusedError" in caplog.text and "ada@example.com" not in caplog.text


@pytest.mark.parametrize(
    ("url", "debug", "site", "expected"),
    [
        ("smtp://user:p%40ss@mail.example", False, SITE, ("smtp", "mail.example", 587, "user", "p@ss", True, False)),
        ("smtps://mail.example", False, SITE, ("smtp", "mail.example", 465, "", "", False, True)),
        ("smtp://relay:25?tls=no", False, SITE, ("smtp", "relay", 25, "", "", False, False)),
        ("", True, SITE, ("console", "", 0, "", "", False, False)),
        ("file:///mails", False, "http://127.0.0.1:8000", ("filebased", "", 0, "", "", False, False)),
    ],
)
def test_the_address_says_how(url: str, debug: bool, site: str, expected: tuple[object, ...]) -> None:
    found = parse_mail(url, debug=debug, public_url=site)
    kind = found.backend.removeprefix("django.core.mail.backends.").removesuffix(".EmailBackend")
    assert (kind, found.host, found.port, found.user, found.password, found.starttls, found.tls) == expected


@pytest.mark.parametrize("url", ["", "console:", "file:///mails", "http://mail.example", "smtp://", "smtp://x:99999"])
def test_production_does_not_start_without_a_mail_server(url: str) -> None:
    with pytest.raises(MailError, match="EMAIL_URL"):
        parse_mail(url, debug=False, public_url=SITE)
