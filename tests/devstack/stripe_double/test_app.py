"""The double as a process on loopback: API, checkout page, webhooks, restart."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
import stripe

from devstack.state import free_port

KEY = "sk_test_app"
SECRET = "whsec_app"


def wait_until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


class Receiver:
    """A webhook endpoint that refuses the first `refusals` calls."""

    def __init__(self) -> None:
        self.received: list[tuple[bytes, str]] = []
        self.refusals = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.refusals > 0:
                    receiver.refusals -= 1
                    self.send_response(500)
                else:
                    receiver.received.append((body, self.headers["stripe-signature"]))
                    self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Process:
    def __init__(self, state_file: Path, webhook_url: str) -> None:
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(
                sys.executable,
                "-m",
                "devstack.stripe_double",
                "--port",
                str(self.port),
                "--state-file",
                str(state_file),
            ),
            *("--webhook-url", webhook_url, "--webhook-secret", SECRET, "--api-key", KEY),
        ]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command)
        wait_until(self.healthy)

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.base}/health", trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def client(self, retries: int = 0) -> stripe.StripeClient:
        return stripe.StripeClient(KEY, base_addresses={"api": self.base}, max_network_retries=retries)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("double") / "state.json", receiver.url)
    yield process
    process.kill()


def create(double: Process, key: str | None = None, retries: int = 0):
    price = {"currency": "usd", "unit_amount": 1_234, "product_data": {"name": "<Credit>"}}
    return double.client(retries).v1.checkout.sessions.create(
        {
            "mode": "payment",
            "client_reference_id": "ref",
            "line_items": [{"quantity": 1, "price_data": price}],
            "success_url": "http://shop.invalid/back?session={CHECKOUT_SESSION_ID}",
            "cancel_url": "http://shop.invalid/cancelled",
        },
        {"idempotency_key": key} if key else None,
    )


def test_a_customer_sees_a_labelled_page_pays_and_returns_to_the_shop(double: Process, receiver: Receiver) -> None:
    session = create(double)
    page = httpx.get(session.url, trust_env=False)
    assert page.status_code == 200
    assert "Test double of Stripe" in page.text and "$12.34" in page.text
    assert "&lt;Credit&gt;" in page.text and "<Credit>" not in page.text

    cancelled = httpx.post(f"{session.url}/cancel", trust_env=False)
    assert (cancelled.status_code, cancelled.headers["location"]) == (303, "http://shop.invalid/cancelled")
    assert double.client().v1.checkout.sessions.retrieve(session.id).status == "open"

    receiver.received.clear()
    receiver.refusals = 2
    paid = httpx.post(session.url, trust_env=False)
    assert (paid.status_code, paid.headers["location"]) == (303, f"http://shop.invalid/back?session={session.id}")
    assert httpx.get(session.url + "x", trust_env=False).status_code == 404

    wait_until(lambda: len(receiver.received) == 4)  # two of them at the second attempt
    events = [stripe.Webhook.construct_event(body, signature, SECRET) for body, signature in receiver.received]
    assert {event.type for event in events} == {
        "checkout.session.completed",
        "payment_intent.succeeded",
        "charge.succeeded",
        "charge.updated",
    }
    wait_until(lambda: not double.client().v1.events.list({"delivery_success": False}).data)


def test_it_keeps_everything_through_kill_9(double: Process) -> None:
    session = create(double, "before-the-crash")
    httpx.post(session.url, trust_env=False)
    double.kill()
    double.start()
    assert create(double, "before-the-crash").id == session.id
    assert double.client().v1.checkout.sessions.retrieve(session.id).payment_status == "paid"


def test_faults_set_from_outside_cut_the_connection_after_the_commit(double: Process) -> None:
    plan = {"requests": [{"kind": "drop_after_commit", "path": "/v1/checkout"}]}
    url = f"{double.base}/double/faults"
    assert httpx.post(url, json=plan, trust_env=False).status_code == 401
    authorized = {"authorization": f"Bearer {KEY}"}
    assert httpx.post(url, json={"requests": [{"kind": "?"}]}, headers=authorized, trust_env=False).status_code == 400
    assert httpx.post(url, json=plan, headers=authorized, trust_env=False).is_success
    before = len(double.client().v1.checkout.sessions.list({"limit": 100}).data)
    with pytest.raises(stripe.APIConnectionError):
        create(double, "dropped")
    assert create(double, "dropped").status == "open"
    assert len(double.client().v1.checkout.sessions.list({"limit": 100}).data) == before + 1


def test_it_refuses_live_keys_and_never_loads_django() -> None:
    command = [sys.executable, "-m", "devstack.stripe_double", "--port", "1", "--state-file", "/nonexistent/x"]
    command += ["--webhook-url", "http://x", "--webhook-secret", "whsec_x", "--api-key", "sk_live_x"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 2 and "sk_test_" in refused.stderr
    check = (
        "import sys, devstack.stripe_double.app, devstack.stripe_double.__main__; assert 'django' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", check], timeout=30).returncode == 0
