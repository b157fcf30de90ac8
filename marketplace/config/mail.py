"""The way that mail leaves the platform: `EMAIL_URL`, parsed once.

| EMAIL_URL | sends |
|---|---|
| `smtp://user:password@host:587` | over SMTP with STARTTLS; in the clear to this machine itself, or with `?tls=no` |
| `smtps://user:password@host:465` | over SMTP in TLS from the first byte |
| `file:///folder` | nothing: writes each mail to a file there, on a machine that serves itself alone |
| `console:` | nothing: prints each mail, with DEBUG=1 alone |
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

_BACKENDS = "django.core.mail.backends"
_PORTS = {"smtp": 587, "smtps": 465}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SECONDS = 10  # a request waits at most so long for the mail server


class MailError(ValueError):
    """The address says no way to send mail; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Mail:
    """Django's mail settings."""

    backend: str
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""
    starttls: bool = False
    tls: bool = False
    folder: str = ""


def parse_mail(url: str, *, debug: bool, public_url: str) -> Mail:
    """Return what `EMAIL_URL` says. Raises MailError; without an address only DEBUG has an answer: the console."""
    on_loopback = (urlsplit(public_url).hostname or "") in _LOOPBACK
    if not url and debug:
        return Mail(f"{_BACKENDS}.console.EmailBackend")
    if not url:
        raise MailError(
            "EMAIL_URL is not set, so nobody could verify an address or reset a password; name a mail server, such as "
            "smtp://user:password@mail.example:587, or start with DEBUG=1, which prints mails"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise MailError("EMAIL_URL is no URL") from None
    if parts.scheme == "console" and debug:
        return Mail(f"{_BACKENDS}.console.EmailBackend")
    if parts.scheme == "file" and parts.path and (debug or on_loopback):
        return Mail(f"{_BACKENDS}.filebased.EmailBackend", folder=unquote(parts.path))
    if parts.scheme not in _PORTS or not parts.hostname:
        raise MailError(
            "EMAIL_URL must be smtp://user:password@host:587 or smtps://user:password@host:465; "
            "console: needs DEBUG=1, and file: a PUBLIC_URL on this machine"
        )
    plain = parts.hostname in _LOOPBACK or parse_qs(parts.query).get("tls") == ["no"]
    return Mail(
        f"{_BACKENDS}.smtp.EmailBackend",
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        starttls=parts.scheme == "smtp" and not plain,
        tls=parts.scheme == "smtps",
    )
