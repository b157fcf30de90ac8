"""Log in and out."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from creator_cli.control_api import ControlApi
from creator_cli.errors import ApiError, CliError, NotLoggedIn, Refused
from creator_cli.identity import load_identity, register_identity
from creator_cli.known_platforms import KnownPlatforms
from creator_cli.names import parse_platform_url
from creator_cli.output import Output
from creator_cli.session import Session, platform_url, save_session, session_path, stored_session
from creator_cli.settings import Settings
from sealed_weights.wrap import fingerprint

# Allows publishing, custody and earnings, but neither spending money nor creating keys.
SCOPES = ("publish",)
MAX_SECRET = 4096  # characters of a password or token


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """The options of `intarsia login`."""

    url: str | None
    email: str | None
    organization: str | None
    password_stdin: bool
    token_stdin: bool
    code: str | None
    expires_days: int
    trust_new_key: bool


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The outcome of a login. Keys are named by their public half."""

    url: str
    email: str | None
    organization: str
    signing_key: str
    intake_key: str

    def to_json(self) -> dict[str, Any]:
        """Return the document of `login --json`."""
        return asdict(self)


def log_in(settings: Settings, request: LoginRequest, out: Output) -> LoggedIn:
    """Pin the platform's key, get or check a token, register the signing key, then store the login.

    Raises CliError for a changed key, before any secret is sent; Refused, NotLoggedIn, NetworkError.
    """
    url = parse_platform_url(request.url) if request.url else platform_url(settings)
    if url is None:
        raise Refused("name the platform by its address", hint="intarsia login --url https://…", field="url")
    if request.token_stdin and request.password_stdin:
        raise Refused("--token-stdin and --password-stdin cannot be used together", field="token-stdin")
    known = KnownPlatforms.load(settings)
    with ControlApi(url, None) as api:
        intake_key = api.intake_key()
        if known.check_intake_key(url, intake_key, trust_new=request.trust_new_key):
            out.note(f"trusting {url} from now on: intake key {fingerprint(intake_key)}")
        if request.trust_new_key:
            known.forget_vault_key(url)
        token = _read_stdin("token") if request.token_stdin else _create_token(api, request, settings)
    with ControlApi(url, token) as api:
        me = api.me()
        known.check_organization(url, me.organization, me.organization_id, trust_new=request.trust_new_key)
        identity = load_identity(settings)
        register_identity(api, me.organization, identity)
    replaced = _replaceable_session(settings, token)
    save_session(settings, Session(url, token), organization=me.organization)
    if replaced:
        _revoke(replaced)  # best effort: tokens that are no longer stored anywhere must not pile up
    return LoggedIn(url, me.email, me.organization, identity.public_bytes().hex(), fingerprint(intake_key))


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


def _create_token(api: ControlApi, request: LoginRequest, settings: Settings) -> str:
    if not request.email:
        raise Refused("your e-mail address is missing", hint="intarsia login --email you@example.com", field="email")
    expires = datetime.now(UTC) + timedelta(days=request.expires_days)
    wanted: dict[str, Any] = {
        "email": request.email,
        "password": _read_stdin("password") if request.password_stdin else _ask_password(),
        "scopes": list(SCOPES),
        "name": f"intarsia on {platform.node() or 'a machine'}"[:100],
        "expires_at": expires.isoformat(),
    }
    if request.organization:
        wanted["organization"] = request.organization
    if request.code:
        wanted["code"] = request.code
    try:
        return api.create_token(wanted)
    except ApiError as error:
        if error.code == "second_factor_required" and not request.code:
            if sys.stdin.isatty():
                wanted["code"] = typer.prompt("Code of your authenticator app", err=True)
                return api.create_token(wanted)
            error.hint = "intarsia login --code CODE …"
        if error.code == "email_unverified":
            error.hint = "open the link that was mailed to you, then log in again"
        if error.code == "organization_required":
            error.hint = "intarsia login --organization NAME …"
        raise


def _read_stdin(what: str) -> str:
    text = sys.stdin.readline(MAX_SECRET + 2).rstrip("\r\n")
    if not text or len(text) > MAX_SECRET:
        raise Refused(f"standard input holds no {what}", field=f"{what}-stdin")
    if what == "token" and not (text.isascii() and text.isprintable() and " " not in text):
        raise Refused("standard input does not hold an API key", field="token-stdin")
    return text


def _ask_password() -> str:
    if not sys.stdin.isatty():
        raise Refused(
            "the password cannot be asked for without a terminal: add --password-stdin", field="password-stdin"
        )
    return str(typer.prompt("Password", hide_input=True, err=True))
