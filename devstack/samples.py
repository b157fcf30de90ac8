"""The sample accounts, and the three sample creators: each pushes its adapter with the real `intarsia` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from devstack.console import fail, step
from devstack.errors import LocalStackError
from devstack.private_file import write_private
from devstack.state import REPOSITORY, State
from devstack.totp import PERIOD, totp

EXAMPLES = REPOSITORY / "examples"
# The scorer of each sample's held-out rows, as options of `intarsia eval push`.
SCORERS = {
    "finance": ("--scorer", "label", "--field", "category"),
    "health": ("--scorer", "fields", "--field", "specialty", "--field", "urgency"),
    "telecom": ("--scorer", "fields", "--field", "queue", "--field", "priority"),
}
ROLES = ("staff", "finance", "health", "telecom", "consumer")
_CLI_SECONDS = 180  # of one command, without what it was told to wait


def sample_credentials(state: State) -> Path:
    """Return the file (mode 0600) of role → e-mail and password. One generated password serves all sample accounts.

    Staff need a second factor: theirs has the secret of an authenticator app, too.
    """
    path = state.root / "keys" / "sample-credentials.json"
    logins = {
        role: {"email": f"{role}@intarsia.example", "password": state.secrets["sample_password"]} for role in ROLES
    }
    logins["staff"]["totp_secret"] = state.secrets["sample_totp"]
    text = json.dumps(logins, indent=1)
    if not path.exists() or path.read_text() != text:
        write_private(path, text)
    return path


@dataclass(frozen=True)
class SampleCreator:
    """One sample creator with a machine of its own: a configuration folder with a login and a signing key.

    `role` is the account's; `task` names the folders of the adapter, the listing and the held-out rows.
    """

    state: State
    url: str
    role: str
    task: str
    listing: dict[str, Any]

    @property
    def model_name(self) -> str:
        return f"{self.listing['org_slug']}/{self.listing['slug']}"

    @property
    def adapter(self) -> Path:
        return EXAMPLES / "adapters" / self.task

    @property
    def is_measured(self) -> bool:
        """Return whether there are held-out rows of its task."""
        return self.task in SCORERS

    def is_published(self) -> bool:
        """Return whether the public catalogue has a version for sale."""
        answer = httpx.get(f"{self.url}/models/{self.model_name}", timeout=10)
        return answer.status_code == 200

    def cli(self, *arguments: str, stdin: str | None = None, seconds: float = _CLI_SECONDS) -> str:
        """Run `intarsia …` as this creator, for at most `seconds`.

        Returns its standard output; raises LocalStackError with its error.
        """
        home = self.state.root / "creators" / self.role
        home.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(home),
            "INTARSIA_CONFIG_DIR": str(home),
            "INTARSIA_URL": self.url,
            "PYTHONPATH": str(REPOSITORY),  # this clone's command, as every other process is this clone's
            "LANG": os.environ.get("LANG", "C.UTF-8"),
        }
        try:
            done = subprocess.run(
                [str(Path(sys.executable).with_name("intarsia")), *arguments],
                env=environment,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            raise LocalStackError(f"`intarsia {' '.join(arguments)}` took longer than {seconds:.0f} s.") from None
        if done.returncode != 0:
            raise LocalStackError(f"`intarsia {' '.join(arguments)}` failed:\n{(done.stderr + done.stdout)[-2000:]}")
        return done.stdout

    def log_in(self) -> None:
        """Run `intarsia login` with an API key on standard input: nobody is here to confirm in a browser."""
        key = staff_key(self.state, self.url) if self.role == "staff" else self._new_key()
        self.cli("login", "--url", self.url, "--token-stdin", stdin=key)

    def _new_key(self) -> str:
        """Make a key with the sample creator's password; a login revokes the one before it."""
        login = json.loads(sample_credentials(self.state).read_text())[self.role]
        wanted = {"email": login["email"], "password": login["password"], "scopes": ["publish", "read"]}
        answer = httpx.post(f"{self.url}/api/v1/tokens", json={**wanted, "name": "this machine"}, timeout=30)
        return str(_answer(answer)["key"])

    def push(self) -> dict[str, Any]:
        """Log in, check, push, price and publish a new version. Returns the object that `push --json` prints.

        Whoever runs this machine's platform is its staff: where a person must look first, their account approves the
        sample, through the same queue as any other model.
        """
        self.log_in()
        listing = EXAMPLES / self.task / "model.json"
        output = self.cli("push", str(self.adapter), "--listing", str(listing), "--publish", "--json")
        answer: dict[str, Any] = json.loads(output)
        if answer["state"] == "in_review":
            approve_as_staff(self.state, self.url, answer["review"]["id"])
            answer["state"] = "published"
        return answer

    def was_measured(self) -> bool:
        """Log in, and return whether the platform measured the model, or is about to.

        A login is for one address: a platform that was published to before may have come back on another port.
        """
        self.log_in()
        return bool(json.loads(self.cli("eval", "list", self.model_name, "--json")))

    def measure(self, *, wait: int) -> dict[str, Any]:
        """Have the platform measure the newest version with the held-out rows, sealed by the real CLI.

        Returns the object that `eval push --json` prints: within `wait` seconds with its figure, at 0 without one.
        """
        rows = EXAMPLES / self.task / "heldout.jsonl"
        options = ("--model", self.model_name, *SCORERS[self.task], "--wait", str(wait), "--yes", "--json")
        answer: dict[str, Any] = json.loads(self.cli("eval", "push", str(rows), *options, seconds=wait + _CLI_SECONDS))
        return answer


def approve_as_staff(state: State, url: str, review_id: str) -> None:
    """Approve one review of the queue as the sample member of staff. Raises LocalStackError."""
    headers = {"authorization": f"Bearer {staff_key(state, url)}"}
    with httpx.Client(base_url=f"{url}/api/v1/", headers=headers, timeout=30) as http:
        queue = _answer(http.get("platform/reviews"))["results"]
        digest = next((one["listing_digest"] for one in queue if one["id"] == review_id), "")
        _answer(http.post(f"platform/reviews/{review_id}/approve", json={"listing_digest": digest}))


def staff_key(state: State, url: str) -> str:
    """Return an API key of the sample member of staff, made with a code of their authenticator app at first use.

    A code counts once, so one key serves every command of this machine. Raises LocalStackError.
    """
    path = state.root / "keys" / "staff-api-key"
    if path.exists():
        key = path.read_text()
        if httpx.get(f"{url}/api/v1/me", headers={"authorization": f"Bearer {key}"}, timeout=30).is_success:
            return key
    login = json.loads(sample_credentials(state).read_text())["staff"]
    wanted = {name: login[name] for name in ("email", "password")}
    wanted |= {"name": "this machine", "scopes": ["publish", "account"]}
    answer = httpx.post(f"{url}/api/v1/tokens", json={**wanted, "code": totp(login["totp_secret"])}, timeout=30)
    if answer.status_code == 403:  # the code of this half minute was used already
        time.sleep(PERIOD - time.time() % PERIOD)
        answer = httpx.post(f"{url}/api/v1/tokens", json={**wanted, "code": totp(login["totp_secret"])}, timeout=30)
    key = str(_answer(answer)["key"])
    write_private(path, key)
    return key


def _answer(response: httpx.Response) -> dict[str, Any]:
    if response.is_success:
        answer: dict[str, Any] = response.json()
        return answer
    raise LocalStackError(f"{response.request.method} {response.request.url}: {response.status_code} {response.text}")


class SampleCreators:
    """Makes the three sample creators of a platform at `url`."""

    def __init__(self, state: State, url: str) -> None:
        self._state = state
        self._url = url

    def all(self) -> list[SampleCreator]:
        return [self.one(role, role) for role in ("finance", "health", "telecom")]

    def guard(self) -> SampleCreator:
        """Return the platform's own organization as the creator of its guard (docs/guards.md)."""
        return self.one("staff", "guard")

    def publish(self, check: Callable[[], None]) -> list[str]:
        """Push samples and guard with the real command unless they are for sale, and have the samples measured.

        A sample that fails ends nothing: its failure is shown at once, and returned as a sentence for the end. `check`
        is called after each one; what it raises, because the platform itself has failed, does end it.
        """
        failed = []
        for creator in (*self.all(), self.guard()):
            try:
                _publish(creator)
            except (LocalStackError, httpx.HTTPError, OSError, ValueError, LookupError) as error:
                fail(f"the sample {creator.model_name} failed, and the platform runs on without it:\n{error}")
                failed.append(f"{creator.model_name} is not complete: run `make run` again, or push it by hand")
            check()
        return failed

    def one(self, role: str, task: str) -> SampleCreator:
        listing = json.loads((EXAMPLES / task / "model.json").read_text())
        return SampleCreator(self._state, self._url, role, task, listing)


def _publish(creator: SampleCreator) -> None:
    if not creator.is_published():
        with step(f"{creator.model_name}: seal, upload, verify, publish"):
            creator.push()
    if creator.is_measured and not creator.was_measured():
        creator.measure(wait=0)  # the platform goes on with it
