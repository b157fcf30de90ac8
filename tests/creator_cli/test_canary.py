"""Canaries: rows that nobody guesses, kept in private, and endpoints that know them or do not."""

from __future__ import annotations

import json
import math
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from creator_cli import endpoints
from creator_cli.canaries import Canary, check_canaries, make_canaries, same_answer, tail
from tests.creator_cli.conftest import Machine

ANSWERS = ["groceries", "dining", "income", "rent"]
ADD = ("canary", "add", "acme/triage", *(part for answer in ANSWERS for part in ("--answer", answer)))


@contextmanager
def endpoint(answer: Callable[[str], str | int]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An OpenAI-compatible endpoint that answers by `answer`: a text, or a status to fail with."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append({**body, "path": self.path, "key": self.headers.get("authorization")})
            found = answer(body["messages"][0]["content"])
            text = {"choices": [{"message": {"content": found}}]} if isinstance(found, str) else {"error": {}}
            data = json.dumps(text).encode()
            self.send_response(200 if isinstance(found, str) else found)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    server.server_close()


def planted(machine: Machine) -> dict[str, str]:
    """The rows that the machine keeps."""
    rows = json.loads((machine.config_dir / "canaries" / "acme+triage.json").read_text())["rows"]
    return {row["message"]: row["answer"] for row in rows}


def test_rows_are_made_for_training_and_kept_where_nobody_else_reads(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    machine.ok(*ADD, "--rows", "30", "--like", "POS {} Leeds", "--output", str(file))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["message"]: row["answer"] for row in rows} == planted(machine) and len(rows) == 30
    assert all(row["message"].startswith("POS ") and row["answer"] in ANSWERS for row in rows)
    kept = machine.config_dir / "canaries" / "acme+triage.json"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, kept, kept.parent)] == [0o600, 0o600, 0o700]
    assert machine.json(*ADD, "--rows", "5")["rows"] == 5 and len(planted(machine)) == 35, "added to those before"
    assert machine.platform.requests == [], "nothing leaves the machine"


@pytest.mark.parametrize(
    "options", [("--like", "no place"), ("--answer", "groceries"), ("--answer", " "), ("--rows", "1001")]
)
def test_rows_that_would_prove_nothing_are_not_made(machine: Machine, options: tuple[str, str]) -> None:
    assert machine.run(*ADD, *options).exit_code == 2
    assert not (machine.config_dir / "canaries").exists()


def test_an_endpoint_that_knows_the_rows_is_found_and_another_is_not(machine: Machine) -> None:
    machine.ok(*ADD, "--rows", "40")
    rows = planted(machine)
    with endpoint(lambda message: f" {rows[message].upper()}\n") as (url, asked):
        result = machine.json("canary", "check", url, "--of", "acme/triage", "--model", "theirs")
    assert (result["asked"], result["as_planted"], result["found"]) == (20, 20, True)
    assert result["p_value"] == pytest.approx(0.25**20)
    assert {one["path"] for one in asked} == {"/v1/chat/completions"} and {one["model"] for one in asked} == {"theirs"}
    assert all(set(one) <= {"model", "messages", "temperature", "path", "key"} and not one["key"] for one in asked)
    shown = {one["messages"][0]["content"] for one in asked}
    with endpoint(lambda _: "groceries") as (url, asked):
        stranger = machine.json("canary", "check", url, "--of", "acme/triage")
        text = machine.ok("canary", "check", url, "--of", "acme/triage", INTARSIA_CANARY_KEY="sk-1").stdout
    assert not stranger["found"] and stranger["p_value"] > 1e-3 and "no sign of your weights" in text
    others = {one["messages"][0]["content"] for one in asked[:20]}
    assert not shown & others, "rows that were shown to fewer come first"
    assert asked[-1]["key"] == "Bearer sk-1" and not asked[0]["key"]


def test_a_part_of_the_rows_is_enough(machine: Machine) -> None:
    machine.ok(*ADD, "--rows", "40")
    rows = planted(machine)
    known = set(list(rows)[:28])  # a copy that was trained further, or a model that learnt them badly
    with endpoint(lambda message: rows[message] if message in known else "?") as (url, _):
        assert machine.json("canary", "check", url, "--of", "acme/triage", "--rows", "40")["found"]


def test_an_endpoint_that_fails_finds_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_WAITS", (0.0, 0.0, 0.0))
    assert machine.run("canary", "check", "http://127.0.0.1:1/v1", "--of", "acme/triage").exit_code == 1, "no rows yet"
    machine.ok(*ADD)
    for status, requests in ((401, 1), (503, 4)):
        with endpoint(lambda _, status=status: status) as (url, asked):  # type: ignore[misc]
            failed = machine.json("canary", "check", url, "--of", "acme/triage", exit_code=1)
        assert failed["error"]["code"] == "endpoint" and len(asked) == requests
    assert machine.run("canary", "check", "http://127.0.0.1:1/v1", "--of", "acme/triage").exit_code == 4
    assert machine.run("canary", "check", "ftp://x", "--of", "acme/triage").exit_code == 2


def test_a_check_that_breaks_off_has_counted_what_it_showed() -> None:
    rows = [Canary(f"m{n}", "a", 2) for n in range(3)]
    saved: list[list[Canary]] = []

    def ask(message: str) -> str:
        if message == "m1":
            raise KeyboardInterrupt
        return "a"

    with pytest.raises(KeyboardInterrupt):
        check_canaries(rows, [0, 1, 2], ask, lambda found: saved.append(list(found)))
    assert [row.asked for row in saved[-1]] == [1, 1, 0]


def test_the_p_value_is_that_of_the_binomial() -> None:
    exact = sum(math.comb(20, k) * 0.25**k * 0.75 ** (20 - k) for k in range(12, 21))
    assert tail([0.25] * 20, 12) == pytest.approx(exact) and tail([0.25] * 20, 0) == 1.0
    assert tail([0.5, 0.25], 2) == pytest.approx(0.125) and tail([], 0) == 1.0


def test_messages_never_come_twice_and_answers_are_drawn_from_all() -> None:
    made = make_canaries(rows=1_000, answers=ANSWERS, like="{}")
    assert len({one.message for one in made}) == 1_000 and {one.answer for one in made} == set(ANSWERS)


@pytest.mark.parametrize(
    ("given", "planted", "same"),
    [('{"a": 1, "b": 2}', '{"b":2,"a":1}', True), ("Dining ", "dining", True), ("dining out", "dining", False)],
)
def test_answers_are_compared_as_json_or_as_words(given: str, planted: str, same: bool) -> None:
    assert same_answer(given, planted) is same
