"""`python -m devstack.stripe_double`: the double on loopback, until it is told to stop."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import uvicorn

from devstack.stripe_double.app import DoubleApp
from devstack.stripe_double.core import StripeDouble


def main(arguments: list[str] | None = None) -> int:
    """Serve. Returns 0 after a clean stop, 2 when the double cannot start."""
    parser = argparse.ArgumentParser(prog="python -m devstack.stripe_double", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="TCP port on 127.0.0.1")
    parser.add_argument("--state-file", type=Path, required=True, help="JSON file, made if absent; survives restarts")
    parser.add_argument("--webhook-url", required=True, help="where signed events are posted")
    # The environment keeps both secrets out of the process list, which every local user can read.
    secret = os.environ.get("STRIPE_WEBHOOK_SECRET")
    key = os.environ.get("STRIPE_API_KEY")
    parser.add_argument("--webhook-secret", default=secret, required=not secret, help="whsec_…: signs the events")
    parser.add_argument("--api-key", default=key, required=not key, help="sk_test_…: the only accepted key")
    parser.add_argument("--public-url", help="address for browsers, if not http://127.0.0.1:PORT")
    options = parser.parse_args(arguments)
    if not options.api_key.startswith("sk_test_"):
        parser.error("--api-key must start with sk_test_: a live key has no business in a double")
    try:
        double = StripeDouble(
            api_key=options.api_key,
            webhook_secret=options.webhook_secret,
            base_url=(options.public_url or f"http://127.0.0.1:{options.port}").rstrip("/"),
            state_file=options.state_file,
        )
    except (OSError, ValueError) as error:
        print(f"stripe double: {error}", file=sys.stderr)
        return 2
    app = DoubleApp(double, webhook_url=options.webhook_url)
    uvicorn.run(
        app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False, timeout_graceful_shutdown=3
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
