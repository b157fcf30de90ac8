"""Every environment variable of the command, read in one place."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

APPLICATION = "intarsia"


@dataclass(frozen=True, slots=True)
class Settings:
    """Variables of the environment: INTARSIA_* of the fields below, NO_COLOR, and those of a desktop.

    `config_dir` holds the login, the signing key and the pinned keys; `cache_dir` the sealed packages of unfinished
    uploads. `url` and `token` replace what `intarsia login` stored. `canary_key` is the API key of an endpoint that
    `intarsia canary check` asks. `debug` shows tracebacks.
    `has_browser`: a window can be opened for the person who typed the command, which one at the far end of SSH does not
    see.
    """

    config_dir: Path
    cache_dir: Path
    url: str | None
    token: str | None = field(repr=False)
    canary_key: str | None = field(repr=False)
    debug: bool
    no_color: bool
    has_browser: bool = False


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment. An empty variable counts as unset."""
    environ = os.environ if environ is None else environ
    return Settings(
        config_dir=_folder(environ.get("INTARSIA_CONFIG_DIR"), "user_config_path"),
        cache_dir=_folder(environ.get("INTARSIA_CACHE_DIR"), "user_cache_path"),
        url=environ.get("INTARSIA_URL") or None,
        token=environ.get("INTARSIA_TOKEN") or None,
        canary_key=environ.get("INTARSIA_CANARY_KEY") or None,
        debug=environ.get("INTARSIA_DEBUG", "") not in ("", "0"),
        no_color=bool(environ.get("NO_COLOR")),
        has_browser=sys.stderr.isatty()
        and not environ.get("SSH_CONNECTION")
        and (sys.platform in ("darwin", "win32") or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))),
    )


def _folder(given: str | None, default: str) -> Path:
    if given:
        return Path(given).expanduser().absolute()
    # Imported here: --help needs no folder, and neither does a command whose folders the environment names.
    import platformdirs

    folder: Path = getattr(platformdirs, default)(APPLICATION, appauthor=False)
    return folder
