"""A second base model on the running platform: its folder, its replica, and one model for sale on each base."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from devstack.memory_lock import can_lock
from devstack.samples import SampleCreators, approve_as_staff
from devstack.state import REPOSITORY, free_port
from devstack.supervisor import die_with_parent
from protocol.proofs.documents import verify_document
from protocol.proofs.keys import read_key_file
from tests.end_to_end.platform import Platform
from tests.warm import warm

FIRST, SECOND = "smollm2-135m-instruct", "heron-tiny"
WAIT_SECONDS = 120
PRICE = {"input_micro_usd_per_mtok": 60_000, "output_micro_usd_per_mtok": 240_000}


@dataclass
class TwoBases:
    """A creator with models on both bases, and the replica of the second."""

    platform: Platform
    folder: Path
    fingerprints: dict[str, str]
    process: subprocess.Popen[bytes]

    def __post_init__(self) -> None:
        self._creator = SampleCreators(self.platform.state, self.platform.url).one("finance", "finance")
        self._creator.log_in()

    def publish(self, base: str) -> str:
        """Push an example for `base` with the real command and put it up for sale; return the model's name."""
        folder, model = self.folder / f"adapter-{base}", f"{self._creator.listing['org_slug']}/on-{base}"
        self._creator.cli("example", str(folder), "--base", base, "--model", model)
        listing = folder / "model.json"
        text = json.loads(listing.read_text())
        assert text["base"] == self.fingerprints[base]
        text |= {"price": {**PRICE, "embedding_micro_usd_per_mtok": 10_000}, "visibility": "unlisted"}
        listing.write_text(json.dumps(text))
        pushed = json.loads(self._creator.cli("push", str(folder), "--listing", str(listing), "--publish", "--json"))
        if pushed["state"] == "in_review":
            approve_as_staff(self.platform.state, self.platform.url, pushed["review"]["id"])
        return model

    def measure(self, model: str) -> dict[str, Any]:
        """Have the platform measure a model beside its base."""
        rows = self.folder / "rows.jsonl"
        asked = [{"messages": [{"role": "user", "content": f"{n}"}], "expected": f"{n}"} for n in range(20)]
        rows.write_text("".join(json.dumps(one) + "\n" for one in asked))
        options = ("--model", model, "--scorer", "json", "--wait", str(WAIT_SECONDS), "--yes", "--json")
        return dict(json.loads(self._creator.cli("eval", "push", str(rows), *options)))

    def stop(self) -> None:
        """End the replica in order."""
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def second_base(platform: Platform, folder: Path) -> Iterator[TwoBases]:
    """Add a tiny llama with a byte-level vocabulary to the platform, and run a replica of it."""
    model = folder / SECOND
    warm().run("tests.together.maker", "model", model)
    platform.manage("add_base_model", str(model))
    credential = folder / "credential"
    issued = platform.manage("issue_replica_credential", "second-0", "--base", SECOND, "--host", "127.0.0.1")
    credential.write_text(issued.split()[-1])
    port = free_port()
    command = [sys.executable, "-m", "serving", "--model", str(model), "--port", str(port), "--device", "cpu"]
    command += [
        "--threads",
        "1",
        "--kv-cache-mb",
        "8",
        "--adapter-memory-mb",
        "8",
        "--state-dir",
        str(folder / "state"),
    ]
    command += ["--platform-url", platform.url, "--advertise-url", f"http://127.0.0.1:{port}"]
    command += ["--replica-name", "second-0", "--credential-file", str(credential)]
    command += [] if can_lock(1 << 28) else ["--allow-unlocked-memory"]
    log = (folder / "replica.log").open("wb")
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log, preexec_fn=die_with_parent(9))
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not _ready(port):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "replica.log").read_text()
            time.sleep(0.05)
        found = httpx.get(f"{platform.url}/api/v1/bases").json()["results"]
        fingerprints = {base["name"]: base["fingerprint"] for base in found}
        yield TwoBases(platform, folder, fingerprints, process)
    finally:
        process.kill()
        process.wait(60)
        log.close()


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@dataclass(frozen=True)
class Answers:
    """The width of an embedding, and the base that the receipt of a chat completion names."""

    width: int
    fingerprint: str


def _call(platform: Platform, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"Authorization": f"Bearer {platform.api_key}"}
    return httpx.post(f"{platform.url}/v1/{path}", json=body, headers=headers, timeout=60)


def ask_all(platform: Platform, model: str) -> Answers:
    """Make each kind of call to a model."""
    messages = [{"role": "user", "content": "hello heron"}]
    chat = _call(platform, "chat/completions", {"model": model, "messages": messages, "max_tokens": 4})
    assert chat.status_code == 200, chat.text
    plain = _call(platform, "completions", {"model": model, "prompt": "hello", "max_tokens": 2})
    assert plain.status_code == 200 and plain.json()["usage"]["completion_tokens"] == 2, plain.text
    embedded = _call(platform, "embeddings", {"model": model, "input": "hello"})
    assert embedded.status_code == 200, embedded.text
    prediction = chat.headers["x-intarsia-prediction"]
    document = platform.account.download(f"receipts/{prediction}")
    keys = read_key_file(httpx.get(f"{platform.url}/.well-known/intarsia-keys.json").content)
    return Answers(len(embedded.json()["data"][0]["embedding"]), verify_document(document, keys).charge.base)


def batch_of(platform: Platform, models: Sequence[str]) -> dict[str, int]:
    """Run one batch with a line of each model; return the status of each line."""
    line = {"method": "POST", "url": "/v1/chat/completions"}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    lines = [json.dumps({**line, "custom_id": model, "body": {**body, "model": model}}) for model in models]
    headers = {"Authorization": f"Bearer {platform.api_key}"}
    with httpx.Client(base_url=f"{platform.url}/v1", headers=headers, timeout=60) as http:
        files = {"file": ("rows.jsonl", "\n".join(lines).encode())}
        file = http.post("/files", files=files, data={"purpose": "batch"}).json()["id"]
        wanted = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = http.post("/batches", json=wanted).json()
        deadline = time.monotonic() + WAIT_SECONDS
        while batch["status"] in ("validating", "in_progress", "finalizing"):
            assert time.monotonic() < deadline, batch
            time.sleep(0.2)
            batch = http.get(f"/batches/{batch['id']}").json()
        assert batch["status"] == "completed", batch
        answers = http.get(f"/files/{batch['output_file_id']}/content").text.splitlines()
    return {one["custom_id"]: one["response"]["status_code"] for one in map(json.loads, answers)}


def compare(platform: Platform, first: str, second: str) -> dict[str, Any]:
    """Compare two models in a blind trial over two rows; return its end."""
    rows = [{"message": f"POS {number}", "expected": {"a": 1}} for number in range(2)]
    body = {"first": first, "second": second, "budget_nano_usd": 10**9, "scoring": "json", "rows": rows}
    headers = {"Authorization": f"Bearer {platform.api_key}"}
    with httpx.Client(base_url=f"{platform.url}/api/v1", headers=headers, timeout=30) as http:
        made = http.post("/trials", json=body)
        assert made.status_code == 201, made.text
        trial: dict[str, Any] = made.json()
        deadline = time.monotonic() + WAIT_SECONDS
        while trial["ended_at"] is None:
            assert time.monotonic() < deadline, trial
            time.sleep(0.2)
            trial = http.get(f"/trials/{trial['id']}").json()
    return trial


def unavailable(platform: Platform, model: str) -> httpx.Response:
    """Ask a model whose replica is gone."""
    messages = [{"role": "user", "content": "x"}]
    return _call(platform, "chat/completions", {"model": model, "messages": messages, "max_tokens": 2})
