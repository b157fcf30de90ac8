"""The login through the browser (RFC 8628): the command shows a code, a person confirms it, the command gets a key."""

from __future__ import annotations

import platform
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from creator_cli.control_api import ControlApi
from creator_cli.errors import CliError, NetworkError, NotLoggedIn, Refused
from creator_cli.output import Output
from creator_cli.reading import Reader
from creator_cli.settings import Settings

CLIENT_ID = "intarsia-cli"
SHORTEST_WAIT = 1.0  # seconds between two questions
LONGEST_WAIT = 60.0
MAX_SECONDS = 3600
SLOWER = 5.0  # what each `slow_down` adds, as the RFC says
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(frozen=True, slots=True)
class Wish:
    """The login's proposal; the person in the browser decides."""

    scopes: Sequence[str]
    organization: str | None
    days: int
    open_browser: bool


@dataclass(frozen=True, slots=True)
class _Code:
    user_code: str
    device_code: str
    page: str
    page_with_code: str
    seconds: float
    interval: float


def log_in_through_browser(api: ControlApi, wish: Wish, settings: Settings, out: Output) -> str:
    """Return an API key that a person confirmed in their browser.

    Raises NotLoggedIn if it was denied or the code ended, and the errors of the control API.
    """
    code = _ask(api, wish)
    out.note(f"Open {code.page} in a browser and enter the code:  {code.user_code}")
    out.note(f"Confirm only if the page shows this code. It is good for {round(code.seconds / 60)} minutes.")
    if wish.open_browser and settings.has_browser:
        webbrowser.open(code.page_with_code)
    with out.waiting("waiting for you to confirm in the browser"):
        token = _wait(api, code)
    return api.trade_token(token)


def _ask(api: ControlApi, wish: Wish) -> _Code:
    fields = {
        "client_id": CLIENT_ID,
        "scope": " ".join(wish.scopes),
        "name": f"intarsia on {platform.node() or 'a machine'}"[:100],
        "days": str(wish.days),
        "organization": wish.organization or "",
    }
    status, value = api.post_form("oauth/device/code", fields)
    if status != 200:
        raise _refused(_error(value), status)
    reader = Reader(value, "device code")
    page = reader.text("verification_uri")
    if urlsplit(page).scheme not in ("http", "https"):
        raise CliError("the platform named a page to confirm on that is none")
    complete = reader.text("verification_uri_complete") if reader.has("verification_uri_complete") else page
    return _Code(
        user_code=reader.text("user_code"),
        device_code=reader.text("device_code"),
        page=page,
        page_with_code=complete if complete.startswith(page) else page,
        seconds=min(reader.integer("expires_in"), MAX_SECONDS),
        interval=reader.integer("interval") if reader.has("interval") else SLOWER,
    )


def _wait(api: ControlApi, code: _Code) -> str:
    """Ask until the person has decided; an answer that does not come is asked for again."""
    fields = {"client_id": CLIENT_ID, "grant_type": _GRANT, "device_code": code.device_code}
    end = time.monotonic() + code.seconds
    interval = max(code.interval, SHORTEST_WAIT)
    while time.monotonic() < end:
        time.sleep(interval)
        try:
            status, value = api.post_form("oauth/token", fields)
        except NetworkError:
            interval = min(2 * interval, LONGEST_WAIT)
            continue
        if status == 200:
            return Reader(value, "token").text("access_token")
        error = _error(value)
        if error == "slow_down":
            interval = min(interval + SLOWER, LONGEST_WAIT)
        elif error != "authorization_pending" and status < 500:
            raise _refused(error, status)
    raise _refused("expired_token", 400)


def _error(value: Any) -> str:
    error = value.get("error") if isinstance(value, dict) else None
    return error[:100] if isinstance(error, str) else ""


def _refused(error: str, status: int) -> CliError:
    if error == "access_denied":
        return NotLoggedIn("the login was denied in the browser", code="denied")
    if error in ("invalid_grant", "expired_token"):
        return NotLoggedIn("the code has ended before it was confirmed", hint="intarsia login", code="code_ended")
    if error == "invalid_request":
        return Refused("the platform does not take these options", hint="intarsia login --help")
    if status == 429 or error == "slow_down":
        return CliError("too many logins from here; wait a minute", hint="intarsia login", code="rate_limited")
    return CliError(
        f"the platform offers no login through the browser (HTTP {status})",
        hint="create a key on its page of API keys, then: intarsia login --token-stdin",
    )
