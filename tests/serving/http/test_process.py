"""`python -m serving` as a process: start, answer, stop; and what it says when it cannot."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.serving.tiny import Tiny

CANARY = "canary-9f27-never-logged"
SMALL = ("--insecure", "--dtype", "float32", "--kv-cache-mb", "4", "--adapter-memory-mb", "8", "--threads", "1")


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "serving", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_ready(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


def test_it_starts_answers_and_stops_cleanly_on_sigterm(tiny: Tiny) -> None:
    port = free_port()
    process = start(
        "--model",
        tiny.model,
        "--adapters",
        tiny.adapters,
        "--port",
        str(port),
        "--insecure",
        "--dtype",
        "float32",
        "--kv-cache-mb",
        "4",
        "--adapter-memory-mb",
        "8",
        "--threads",
        "1",
    )
    try:
        wait_ready(process, port)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused") as client:
            answer = client.completions.create(
                model="r4",
                prompt=[70, 71, 72],
                max_tokens=8,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
        assert answer.choices[0].model_extra["token_ids"] == tiny.reference("r4", [70, 71, 72], 8)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 0 and "Traceback" not in errors
    finally:
        process.kill()


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
def test_sigterm_ends_no_stream_without_a_word(tiny: Tiny, grace: int) -> None:
    port = free_port()
    process = start(*SMALL, "--model", tiny.model, "--port", str(port), "--shutdown-grace-s", str(grace))
    try:
        wait_ready(process, port)
        with httpx.Client(timeout=30) as client, streaming(client, port, n=4, seed=1) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                if len(lines) == 2:
                    process.send_signal(signal.SIGTERM)
        data = [line[6:] for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        events = [json.loads(line) for line in data[:-1]]
        if grace:
            ends = [c["finish_reason"] for event in events for c in event["choices"] if c["finish_reason"]]
            assert ends == ["length"] * 4
        else:
            assert events[-1]["error"]["code"] == "engine_stopped"
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 0 and "Traceback" not in errors
    finally:
        process.kill()


def test_logs_are_json_lines_that_name_requests_and_never_their_words(tiny: Tiny) -> None:
    port = free_port()
    process = start(*SMALL, "--model", tiny.model, "--adapters", tiny.adapters, "--port", str(port))
    try:
        wait_ready(process, port)
        url = f"http://127.0.0.1:{port}/v1"
        outputs: list[str] = []
        with httpx.Client(timeout=30, headers={"X-Request-ID": "canary-request-1"}) as client:
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
            client.get(f"http://127.0.0.1:{port}/v1/models/{CANARY}")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=90)
    finally:
        process.kill()
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
def test_a_wrong_setting_is_named_and_costs_no_time(tiny: Tiny, tmp_path: Path, flags: list[str], says: str) -> None:
    done = start(*(f.format(model=tiny.model, nowhere=tmp_path / "nowhere") for f in flags))
    _, errors = done.communicate(timeout=90)
    assert done.returncode == 2 and says in errors and "Traceback" not in errors


def test_a_taken_port_is_reported_before_the_model_is_loaded(tiny: Tiny) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = start("--model", tiny.model, "--insecure", "--port", str(listener.getsockname()[1]))
        _, errors = done.communicate(timeout=90)
    assert done.returncode == 2 and "--port" in errors and "loading" not in errors


def test_a_broken_model_folder_is_reported(tiny: Tiny, tmp_path: Path) -> None:
    for name in os.listdir(tiny.model):
        if name != "tokenizer.json":
            (tmp_path / name).write_bytes((tiny.model / name).read_bytes())
    done = start("--model", tmp_path, "--insecure", "--port", "0")
    _, errors = done.communicate(timeout=150)
    assert done.returncode == 1 and "tokenizer.json" in errors and "Traceback" not in errors


def test_serving_imports_neither_transformers_nor_django() -> None:
    code = "import sys, serving.replica, serving.http.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"transformers", "peft", "django"} & set(done.stdout.split())
