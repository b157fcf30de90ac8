"""Runs a platform replica as its own process, for tests that kill it."""

from __future__ import annotations

import argparse
import logging
import socket
import sys

from serving import config as settings
from serving.platform import config as platform_settings


def main() -> int:
    parser = argparse.ArgumentParser()
    settings.add_flags(parser)
    platform_settings.add_flags(parser)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    from serving.platform.launch import run

    listener = socket.create_server(("127.0.0.1", arguments.port))
    platform = platform_settings.from_args(arguments)
    assert platform is not None
    return run(settings.from_args(arguments), platform, listener)


if __name__ == "__main__":
    sys.exit(main())
