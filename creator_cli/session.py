"""The login: URL and token in `config.json`. A token is only ever sent to the URL it was made for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from creator_cli.control_api import ControlApi
from creator_cli.errors import NotLoggedIn
from creator_cli.names import parse_platform_url
from creator_cli.private_files import read_json, write_json
from creator_cli.settings import Settings


@dataclass(frozen=True, slots=True)
class Session:
    """The platform's URL and the token for it."""

    url: str
    token: str = field(repr=False)


def session_path(settings: Settings) -> Path:
    """Return the path of `config.json` in the configuration folder."""
    return settings.config_dir / "config.json"


def save_session(settings: Settings, session: Session, *, organization: str) -> None:
    """Store the login with mode 0600; raises CliError."""
    write_json(session_path(settings), {"url": session.url, "organization": organization, "token": session.token})


def stored_session(settings: Settings) -> Session | None:
    """Return the session that `intarsia login` stored, whatever the environment says."""
    stored = read_json(session_path(settings))
    if stored is None or not isinstance(stored.get("url"), str) or not isinstance(stored.get("token"), str):
        return None
    return Session(parse_platform_url(stored["url"]), stored["token"])


def platform_url(settings: Settings) -> str | None:
    """Return the URL of the environment or of the login, None if there is neither."""
    if settings.url:
        return parse_platform_url(settings.url)
    stored = stored_session(settings)
    return stored.url if stored else None


def load_session(settings: Settings) -> Session:
    """Return the session to use; raises NotLoggedIn, also if the stored token is for another platform."""
    url = platform_url(settings)
    if url is None:
        raise NotLoggedIn("you are not logged in", hint="intarsia login --url https://…")
    if settings.token:
        return Session(url, settings.token)
    stored = stored_session(settings)
    if stored is None or stored.url != url:
        raise NotLoggedIn(f"you are not logged in to {url}", hint=f"intarsia login --url {url}")
    return stored


def open_api(settings: Settings) -> ControlApi:
    """Open the control API with the session's token; raises NotLoggedIn."""
    session = load_session(settings)
    return ControlApi(session.url, session.token)
