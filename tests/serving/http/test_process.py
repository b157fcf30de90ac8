"""`python -m serving` as a process: start, answer, stop; and what it says when it cannot."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.serving.tiny import Tiny
from tests.warm import REPOSITORY, Child, warm

CANARY = "canary-9f27-never-logged"
SMALL = ("--insecure", "--dtype", "float32", "--kv-cache-mb", "4", "--adapter-memory-mb", "8", "--threads", "1")


@dataclass
class Replica:
    """A process that serves, and the file of its errors."""

    process: subprocess.Popen[bytes] | Child
    port: int
    log: Path

    def stop(self) -> str:
        """Have it end in order; returns all that it said."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> str:
        """Wait until it has ended in order; returns all that it said."""
        assert self.process.wait(90) == 0
        return self.log.read_text()


@contextlib.contextmanager
def serving(tiny: Tiny, folder: Path, *more: str, forked: bool = True) -> Iterator[Replica]:
    """Run `python -m serving` until it is ready: forked from a process that has torch, or started from nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    words = [*SMALL, "--model", str(tiny.model), "--adapters", str(tiny.adapters), "--port", str(port), *more]
    log = folder / "errors"
    with log.open("wb") as errors:
        if forked:
            process: subprocess.Popen[bytes] | Child = warm().start("serving", *words, output=errors)
        else:
            process = subprocess.Popen([sys.executable, "-m", "serving", *words], stdout=errors, stderr=errors)
    try:
        deadline = time.monotonic() + 180
        while not is_ready(port):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield Replica(process, port, log)
    finally:
        process.kill()
        process.wait(60)


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_it_starts_answers_and_stops_cleanly_on_sigterm(tiny: Tiny, tmp_path: Path) -> None:
    with serving(tiny, tmp_path, forked=False) as replica:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{replica.port}/v1", api_key="unused") as client:
            answer = client.completions.create(
                model="r4",
                prompt=[70, 71, 72],
                max_tokens=8,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
        assert answer.choices[0].model_extra["token_ids"] == tiny.reference("r4", [70, 71, 72], 8)
        assert "Traceback" not in replica.stop()


def streaming(client: httpx.Client, port: int, **more: Any) -> Any:
    body = {
        "model": "base",
        "prompt": [5] * 20,
        "max_tokens": 480,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    return client.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body | more)


@pytest.mark.parametrize("grace", [20, 0])
def test_sigterm_ends_no_stream_without_a_word(tiny: Tiny, tmp_path: Path, grace: int) -> None:
    with (
        serving(tiny, tmp_path, "--shutdown-grace-s", str(grace)) as replica,
        httpx.Client(timeout=60) as client,
        streaming(client, replica.port, n=4, seed=1) as answer,
    ):
        lines = []
        for line in answer.iter_lines():
            lines.append(line)
            if len(lines) == 2:
                replica.process.send_signal(signal.SIGTERM)
        assert "Traceback" not in replica.ended()
    data = [line[6:] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    events = [json.loads(line) for line in data[:-1]]
    if grace:
        ends = [c["finish_reason"] for event in events for c in event["choices"] if c["finish_reason"]]
        assert ends == ["length"] * 4
    else:
        assert events[-1]["error"]["code"] == "engine_stopped"


def test_logs_are_json_lines_that_name_requests_and_never_their_words(tiny: Tiny, tmp_path: Path) -> None:
    outputs: list[str] = []
    headers = {"X-Request-ID": "canary-request-1"}
    with serving(tiny, tmp_path) as replica, httpx.Client(timeout=60, headers=headers) as client:
        url = f"http://127.0.0.1:{replica.port}/v1"
        body = {"model": "r4", "prompt": CANARY, "max_tokens": 60, "ignore_eos": True, "user": CANARY}
        outputs.append(client.post(f"{url}/completions", json=body).json()["choices"][0]["text"])
        for wrong in (
            {"messages": [{"role": "user", "content": CANARY}], "max_tokens": -1},
            {"messages": [{"role": "user", "content": CANARY * 40}], "max_tokens": 5},
            {"messages": [{"role": CANARY, "content": "a"}]},
        ):
            assert client.post(f"{url}/chat/completions", json={"model": "base"} | wrong).status_code == 400
        schema = {"type": "json_schema", "json_schema": {"schema": {"const": CANARY}}}
        chat = {"model": "base", "messages": [{"role": "user", "content": CANARY}], "response_format": schema}
        client.post(f"{url}/chat/completions", json=chat | {"max_tokens": 20})
        assert client.post(f"{url}/embeddings", json={"model": "base", "input": CANARY}).status_code == 200
        client.get(f"{url}/models/{CANARY}")
        errors = replica.stop()
    lines = [json.loads(line) for line in errors.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) == 3 and all({"timestamp", "level", "logger"} <= set(line) for line in lines)
    first = requests[0]
    assert first["http_request_id"] == "canary-request-1" and len(first["model"]) == 64
    assert (first["completion_tokens"], first["finish_reason"], first["choices"]) == (60, "length", 1)
    assert first["prompt_tokens"] == len(CANARY) and first["ttft_ms"] > 0 and first["duration_ms"] >= first["ttft_ms"]
    assert CANARY not in errors and outputs[0] and outputs[0] not in errors


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model", "{nowhere}", "--insecure"], "--model"),
        (["--model", "{model}", "--adapters", "{nowhere}", "--insecure"], "--adapters"),
        (["--model", "{model}", "--insecure", "--dtype", "int3"], "--dtype"),
        (["--model", "{model}", "--insecure", "--kv-cache-mb", "-1"], "--kv-cache-mb"),
        (["--model", "{model}"], "--insecure"),
    ],
)
def test_a_wrong_setting_is_named_before_torch_is_imported(
    tiny: Tiny, tmp_path: Path, flags: list[str], says: str
) -> None:
    done = refused(*(flag.format(model=tiny.model, nowhere=tmp_path / "nowhere") for flag in flags))
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_taken_port_is_reported_before_torch_is_imported(tiny: Tiny) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = refused("--model", str(tiny.model), "--insecure", "--port", str(listener.getsockname()[1]))
    assert done.returncode == 2 and "--port" in done.stderr


def refused(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m serving` where neither torch nor numpy is; returns how it ended and what it said."""
    words = ["serving", *flags]
    program = f"import runpy, sys; sys.path[:0] = [{str(REPOSITORY)!r}]; sys.argv = {words!r}\n"
    program += "sys.modules['torch'] = sys.modules['numpy'] = None\nrunpy.run_module('serving', run_name='__main__')"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0  # torch alone takes more
    return done


def test_a_broken_model_folder_is_reported(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for path in tiny.model.iterdir():
        if path.name != "tokenizer.json":
            (tmp_path / "model" / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "errors").open("wb") as errors:
        flags = ("--model", tmp_path / "model", "--insecure", "--port", "0")
        assert warm().start("serving", *flags, output=errors).wait(150) == 1
    said = (tmp_path / "errors").read_text()
    assert "tokenizer.json" in said and "Traceback" not in said


def test_serving_imports_neither_transformers_nor_django() -> None:
    imported = set(warm().run("tests.warm", "imported").split())
    assert imported >= {"torch", "serving.replica", "serving.http.app", "serving.platform.launch"}
    assert not {"transformers", "peft", "django", "marketplace", "billing"} & imported
