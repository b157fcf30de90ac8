"""The control API for the people of the demonstration: the consumer's account and the operator's figures."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from devstack.errors import LocalStackError
from devstack.samples import sample_credentials, staff_key
from devstack.state import State

TOP_UP_SECONDS = 60
# The consumer's entries on the payment page; tax follows from it.
PAYER = {"name": "Consumer GmbH (demonstration)", "country": "DE", "line1": "Beispielweg 7", "city": "Hamburg"}


class PlatformClient:
    """One signed-in person; calls return parsed JSON or raise LocalStackError with the API's message."""

    def __init__(self, state: State, url: str, role: str, scopes: list[str]) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v1/", timeout=30)
        self._keys: list[str] = []
        if role == "staff":
            self._http.headers["authorization"] = f"Bearer {staff_key(state, url)}"
            return
        login = json.loads(sample_credentials(state).read_text())[role]
        token = self.post("tokens", {**login, "name": "demo", "scopes": scopes})
        self._http.headers["authorization"] = f"Bearer {token['key']}"
        self._keys = [str(token["id"])]

    def get(self, path: str) -> Any:
        return self._answer(self._http.get(path))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._answer(self._http.post(path, json=body))

    def put(self, path: str, body: dict[str, Any]) -> Any:
        return self._answer(self._http.put(path, json=body))

    def download(self, path: str) -> bytes:
        """Return a file. Raises LocalStackError."""
        response = self._http.get(path)
        if not response.is_success:
            self._answer(response)
        return response.content

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._answer(self._http.patch(path, json=body))

    @staticmethod
    def _answer(response: httpx.Response) -> Any:
        if response.is_success:
            return response.json()
        raise LocalStackError(
            f"{response.request.method} {response.request.url}: {response.status_code} {response.text}"
        )

    def top_up(self, amount_cents: int) -> int:
        """Start a Checkout session, pay on its page, wait for the credit. Returns the available nano-dollars."""
        before = int(self.get("wallet")["available_nano_usd"])
        top_up = self.post("topups", {"amount_cents": amount_cents})
        paid = httpx.post(top_up["checkout_url"], data=PAYER, follow_redirects=False, timeout=10)
        if paid.status_code >= 400:
            raise LocalStackError(f"the payment page answered {paid.status_code}")
        deadline = time.monotonic() + TOP_UP_SECONDS
        while (available := int(self.get("wallet")["available_nano_usd"])) <= before:
            if time.monotonic() > deadline:
                raise LocalStackError(f"the top-up was paid but not credited within {TOP_UP_SECONDS} s")
            time.sleep(0.1)
        return available

    def create_prediction_key(self) -> str:
        """Create a key that may only make predictions, and return its secret."""
        made = self.post("keys", {"name": "demo predictions", "scopes": ["predict"]})
        self._keys.insert(0, str(made["id"]))
        return str(made["key"])

    def log_out(self) -> None:
        """Revoke the keys made here, this client's own last."""
        for key in self._keys:
            self._http.delete(f"keys/{key}").raise_for_status()
        self._http.close()

    def wait_until_settled(self, seconds: float = 30) -> dict[str, Any]:
        """Return the operator's summary once every hold is closed and counted, or as it is after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            summary: dict[str, Any] = self.get("platform/summary")
            if summary["open_holds"] + summary["uncounted"] == 0 or time.monotonic() > deadline:
                return summary
            time.sleep(0.2)
