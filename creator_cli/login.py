"""Log in and out."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any

from creator_cli.control_api import ControlApi
from creator_cli.device_login import Wish, log_in_through_browser
from creator_cli.errors import CliError, NotLoggedIn, Refused
from creator_cli.identity import load_identity, register_identity
from creator_cli.known_platforms import KnownPlatforms
from creator_cli.names import parse_platform_url
from creator_cli.output import Output
from creator_cli.session import Session, platform_url, save_session, session_path, stored_session
from creator_cli.settings import Settings
from sealed_weights.wrap import fingerprint

# A login proposes to publish and to look, but neither to spend money nor to create keys.
PROPOSED = ("publish", "read")
SCOPES = ("predict", "publish", "account", "read")
MAX_SECRET = 4096  # characters of a token


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """The options of `intarsia login`."""

    url: str | None
    organization: str | None
    scopes: tuple[str, ...]
    token_stdin: bool
    open_browser: bool
    expires_days: int
    trust_new_key: bool


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The outcome of a login. Keys are named by their public half; only who may publish has a signing key."""

    url: str
    email: str | None
    organization: str
    scopes: tuple[str, ...]
    signing_key: str | None
    intake_key: str

    def to_json(self) -> dict[str, Any]:
        """Return the document of `login --json`."""
        return asdict(self)


def log_in(settings: Settings, request: LoginRequest, out: Output) -> LoggedIn:
    """Pin the platform's key, get or check a token, register the signing key where it may, then store the login.

    Raises CliError for a changed key, before any secret is sent; Refused, NotLoggedIn, NetworkError.
    """
    url = parse_platform_url(request.url) if request.url else platform_url(settings)
    if url is None:
        raise Refused("name the platform by its address", hint="intarsia login --url https://…", field="url")
    for scope in request.scopes:
        if scope not in SCOPES:
            raise Refused(f"{scope!r} is no scope; there are {', '.join(SCOPES)}", field="scope")
    known = KnownPlatforms.load(settings)
    with ControlApi(url, None) as api:
        intake_key = api.intake_key()
        if known.check_intake_key(url, intake_key, trust_new=request.trust_new_key):
            out.note(f"trusting {url} from now on: intake key {fingerprint(intake_key)}")
        if request.trust_new_key:
            known.forget_vault_key(url)
        if request.token_stdin:
            token = _read_token()
        else:
            wish = Wish(request.scopes or PROPOSED, request.organization, request.expires_days, request.open_browser)
            token = log_in_through_browser(api, wish, settings, out)
    with ControlApi(url, token) as api:
        me = api.me()
        known.check_organization(url, me.organization, me.organization_id, trust_new=request.trust_new_key)
        identity = load_identity(settings) if "publish" in me.scopes else None
        if identity is not None:
            register_identity(api, me.organization, identity)
    replaced = _replaceable_session(settings, token)
    save_session(settings, Session(url, token), organization=me.organization)
    if replaced:
        _revoke(replaced)  # best effort: tokens that are no longer stored anywhere must not pile up
    signing_key = None if identity is None else identity.public_bytes().hex()
    return LoggedIn(url, me.email, me.organization, me.scopes, signing_key, fingerprint(intake_key))


def log_out(settings: Settings, out: Output) -> bool:
    """Forget the token; return True if the platform revoked it too. Raises NotLoggedIn."""
    session = stored_session(settings)
    if session is None:
        raise NotLoggedIn("you are not logged in", hint="intarsia login")
    revoked = _revoke(session)
    session_path(settings).unlink(missing_ok=True)
    if not revoked:
        out.note(f"the token is forgotten here but was not revoked; revoke it on the page of API keys of {session.url}")
    return revoked


def _replaceable_session(settings: Settings, token: str) -> Session | None:
    try:
        stored = stored_session(settings)
    except CliError:  # damaged: the new login repairs it
        return None
    return stored if stored and stored.token != token else None


def _revoke(session: Session) -> bool:
    """Revoke the session's token; return True if it no longer works."""
    try:
        # Best effort: the old token's platform may be gone, and waiting for it would help no one.
        with ControlApi(session.url, session.token, patient=False) as api:
            if key_id := api.me().key_id:
                api.delete_key(key_id)
                return True
    except CliError as error:
        return error.exit_code == NotLoggedIn.exit_code
    return False


def _read_token() -> str:
    text = sys.stdin.readline(MAX_SECRET + 2).rstrip("\r\n")
    if not text or len(text) > MAX_SECRET:
        raise Refused("standard input holds no token", field="token-stdin")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise Refused("standard input does not hold an API key", field="token-stdin")
    return text
