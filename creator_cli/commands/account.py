"""login, logout, whoami."""

from __future__ import annotations

from typing import Annotated

import typer

from creator_cli.commands.options import AsJson
from creator_cli.login import PROPOSED, SCOPES, LoginRequest, log_in, log_out
from creator_cli.output import Output
from creator_cli.session import open_api
from creator_cli.settings import load_settings


def login(
    url: Annotated[str | None, typer.Option(help="The platform, for example https://intarsia.example.")] = None,
    organization: Annotated[str | None, typer.Option(help="Your organization, if you are in several.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"What the key may do, repeatable: {', '.join(SCOPES)}. Without it: {', '.join(PROPOSED)}."),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Show the address, open no browser.")] = False,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read an API key from stdin instead.")] = False,
    expires_days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the token expires.")] = 90,
    trust_new_key: Annotated[
        bool, typer.Option("--trust-new-key", help="Accept that the platform's keys have changed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Log in through your browser, create this machine's signing key and pin the platform's key.

    Example: intarsia login --url https://intarsia.example
    """
    request = LoginRequest(
        url=url,
        organization=organization,
        scopes=tuple(scope or ()),
        token_stdin=token_stdin,
        open_browser=not no_browser,
        expires_days=expires_days,
        trust_new_key=trust_new_key,
    )
    out = Output(as_json=as_json)
    result = log_in(load_settings(), request, out)
    if as_json:
        out.document(result.to_json())
        return
    out.say(f"logged in to {result.url} as {result.email or 'an API key'} for {result.organization}")
    out.say(f"platform's key {result.intake_key[:16]}…, scopes {', '.join(result.scopes)}")
    if result.signing_key is not None:
        out.say(f"signing key {result.signing_key[:16]}…")
    out.say("next: intarsia init" if result.signing_key is not None else "next: intarsia usage")


def logout(as_json: AsJson = False) -> None:
    """Revoke the token where possible and forget it. The signing key and pinned keys stay.

    Example: intarsia logout
    """
    out = Output(as_json=as_json)
    revoked = log_out(load_settings(), out)
    if as_json:
        out.document({"logged_in": False, "token_revoked": revoked})
    else:
        out.say("logged out" + ("; the token is revoked" if revoked else ""))


def whoami(as_json: AsJson = False) -> None:
    """Show which user and organization this machine is logged in as.

    Example: intarsia whoami
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        me = api.me()
        url = api.url
    if as_json:
        out.document(
            {
                "url": url,
                "email": me.email,
                "organization": me.organization,
                "role": me.role,
                "scopes": list(me.scopes),
                "expires_at": me.expires_at,
            }
        )
        return
    out.facts(
        [
            ("platform", url),
            ("e-mail", me.email or "–"),
            ("organization", f"{me.organization} ({me.role})" if me.role else me.organization),
            ("scopes", ", ".join(me.scopes)),
            ("expires", me.expires_at or "never"),
        ]
    )
