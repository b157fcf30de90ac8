"""`python -m serving`: one replica on one port."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from serving import config as settings
from serving.errors import ConfigError
from serving.platform import config as platform_settings

_Result = TypeVar("_Result")


def main(argv: list[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT. Exit code 2: a setting is wrong; 1: it could not start."""
    parser = argparse.ArgumentParser(
        prog="python -m serving", description="Serve one base model and its LoRA adapters."
    )
    settings.add_flags(parser)
    platform_settings.add_flags(parser)
    arguments = parser.parse_args(argv)
    try:
        config = settings.from_args(arguments)
        platform = platform_settings.from_args(arguments)
        if platform is None and not config.insecure:
            raise ConfigError(
                "--insecure is required to serve plain folders: anyone who reaches the port may call every adapter"
            )
        if platform is not None and (config.insecure or config.adapters is not None):
            raise ConfigError("--insecure and --adapters are for plain folders, not with --platform-url")
        # Bound before the model is loaded: a taken port is known at once.
        listener = _bind(config.host, config.port)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # Imported late: structlog takes longer than reading and checking the flags, and numpy comes with the other.
    from sealed_weights.process import keep_memory_private
    from serving import logs

    keep_memory_private()
    logs.configure()
    # While one core imports torch, the other reads and hashes the weights.
    fingerprint = _in_background(lambda: _fingerprint(config.model))
    if platform is None:
        return _serve_folders(config, listener, fingerprint)
    return _serve_platform(config, platform, listener, fingerprint)


def _in_background(work: Callable[[], _Result]) -> Future[_Result]:
    """Runs `work` in a thread of its own."""
    executor = ThreadPoolExecutor(1)
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future


def _fingerprint(folder: Path) -> bytes:
    from sealed_weights import base_fingerprint

    return base_fingerprint(folder)


def _serve_platform(
    config: settings.ServingConfig,
    platform: platform_settings.PlatformConfig,
    listener: socket.socket,
    fingerprint: Future[bytes],
) -> int:
    # Imported late, as below.
    from sealed_weights import SealError
    from serving.models.config import ModelConfigError
    from serving.platform.errors import JournalUnavailable
    from serving.platform.launch import run
    from serving.tokenization.tokenizer import TokenizerError

    try:
        return run(config, platform, listener, fingerprint)
    except (ConfigError, ModelConfigError, TokenizerError, SealError, JournalUnavailable, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _serve_folders(config: settings.ServingConfig, listener: socket.socket, fingerprint: Future[bytes]) -> int:
    # Imported late: a wrong flag should not take torch's start-up time to be told.
    from sealed_weights import SealError
    from serving.adapters.directory import DirectoryAdapterSource
    from serving.models.config import ModelConfigError
    from serving.replica import Base, build_engine
    from serving.tokenization.tokenizer import TokenizerError

    try:
        base = Base.from_dir(config.model, fingerprint)
        source = DirectoryAdapterSource(config.adapters, base.spec)
        building = _in_background(lambda: build_engine(config, base, source))
        # Meanwhile: these take a fifth of a second.
        from serving.about import about_route
        from serving.engine.watchdog import Watchdog
        from serving.http.admission import InsecureAuthorizer
        from serving.http.app import create_app
        from serving.http.server import run_server

        authorizer = InsecureAuthorizer(source, config.request_timeout_s)
        engine = building.result()
    except (ConfigError, ModelConfigError, TokenizerError, SealError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    app = create_app(
        engine,
        base.tokenizer,
        authorizer=authorizer,
        contracts=source,
        extra_routes=[about_route(config, base, engine)],
        max_body_bytes=config.max_body_bytes,
        shutdown_grace_s=config.shutdown_grace_s,
    )
    host, port = listener.getsockname()[:2]
    logging.getLogger("serving").info("listening on http://%s:%d", host, port)
    watchdog = Watchdog(engine, config.step_timeout_s)
    watchdog.start()
    try:
        return 0 if run_server(app, engine, listener, config.shutdown_grace_s) else 1
    finally:
        watchdog.close()


def _bind(host: str, port: int) -> socket.socket:
    """Raises ConfigError when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: {error.strerror}; choose another port, or stop what is listening there"
        ) from error
    return listener


if __name__ == "__main__":
    sys.exit(main())
