"""Packages from a blob store: URLs that expire, and stores that send something else, too much, or without an end."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.platform import downloads
from serving.platform.config import PlatformConfig, add_flags, from_args
from serving.platform.downloads import Downloads
from serving.platform.errors import ProtocolViolation, VaultUnreachable

DIGEST = "ab" * 32
CONTENT = os.urandom(50_000)
Answer = Callable[["Store"], None]


class Store(http.server.BaseHTTPRequestHandler):
    """Answers as `script` says, one entry per request, and at the end as a store should."""

    script: list[Answer] = []  # noqa: RUF012
    seen: list[dict[str, str]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append({**self.headers, "path": self.path})
        (self.script.pop(0) if self.script else rest)(self)

    def start(self, status: int, **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def first(self) -> int:
        return int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))

    def log_message(self, *arguments: Any) -> None:
        pass


def rest(store: Store, *, sent: int | None = None) -> None:
    """What was asked for; with `sent`, the connection breaks after so many bytes."""
    first = store.first()
    span = f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}"
    store.start(206, Content_Length=len(CONTENT) - first, Content_Range=span)
    store.wfile.write(CONTENT[first:][:sent])


def breaking(store: Store) -> None:
    rest(store, sent=20_000)


def expired(store: Store) -> None:
    store.start(403, Content_Length=10**12)  # and a body without an end, which nobody reads
    store.wfile.write(b"<Error>Request has expired</Error>")


def redirect(store: Store) -> None:
    store.start(302, Location="http://127.0.0.1:9/elsewhere", Content_Length=0)


def too_much(store: Store) -> None:
    store.start(206, Content_Range=f"bytes {store.first()}-{len(CONTENT)}/*", Connection="close")
    store.wfile.write(CONTENT[store.first() :] + b"x")


def another_part(store: Store) -> None:
    store.start(206, Content_Range=f"bytes 7-{len(CONTENT) - 1}/{len(CONTENT)}", Connection="close")
    store.wfile.write(CONTENT[7:])


def another_size(store: Store) -> None:
    store.start(206, Content_Range=f"bytes {store.first()}-99/100", Connection="close")


def drips(store: Store) -> None:
    """A byte, and another, as long as anybody listens."""
    store.start(206, Content_Range=f"bytes {store.first()}-{len(CONTENT) - 1}/*", Connection="close")
    try:
        while True:
            store.wfile.write(b"x")
    except OSError:
        pass


def whole(store: Store) -> None:
    store.start(200, Content_Length=len(CONTENT))
    store.wfile.write(CONTENT)


class Platform:
    """Signs a URL per question, as the platform's client returns it."""

    api_url = "https://platform.example/internal/v1/"

    def __init__(self, origin: str) -> None:
        self.origin, self.asked = origin, 0

    def package_url(self, digest: str) -> str:
        self.asked += 1
        return f"{self.origin}/bucket/{digest}?signature={self.asked}"


@pytest.fixture
def store() -> Iterator[type[Store]]:
    handler = type("Handler", (Store,), {"script": [], "seen": []})
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.origin = f"http://127.0.0.1:{listening.server_port}"  # type: ignore[attr-defined]
    threading.Thread(target=listening.serve_forever, args=[0.01], daemon=True).start()
    yield handler
    listening.shutdown()
    listening.server_close()


def fetch(store: Any, partial: Path, *, origins: tuple[str, ...] | None = None) -> Platform:
    platform = Platform(store.origin)
    allowed = (store.origin,) if origins is None else origins
    Downloads(platform, allowed).fetch(DIGEST, len(CONTENT), partial)  # type: ignore[arg-type]
    return platform


def test_the_store_gets_the_url_and_nothing_else(store: Any, tmp_path: Path) -> None:
    fetch(store, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT
    (seen,) = store.seen
    assert seen["path"] == f"/bucket/{DIGEST}?signature=1"
    usual = {"accept", "accept-encoding", "connection", "host", "range", "user-agent"}
    assert {name.lower() for name in seen} - {"path"} == usual


def test_a_url_that_expires_on_the_way_is_replaced_and_the_download_goes_on(store: Any, tmp_path: Path) -> None:
    store.script[:] = [breaking, expired]
    platform = fetch(store, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert [one["Range"] for one in store.seen] == ["bytes=0-", "bytes=20000-", "bytes=20000-"]
    assert platform.asked == 3 and store.seen[-1]["path"].endswith("signature=3")


def test_a_store_that_refuses_is_asked_three_times(store: Any, tmp_path: Path) -> None:
    store.script[:] = [expired] * 9
    with pytest.raises(VaultUnreachable, match="answered with 403"):
        fetch(store, tmp_path / "part")
    assert len(store.seen) == downloads.ATTEMPTS


def test_a_store_without_ranges_is_read_from_the_start(store: Any, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"left over")
    store.script[:] = [whole]
    fetch(store, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (redirect, "redirects are not followed"),
        (too_much, "more bytes than the package has"),
        (another_part, "another part of the package"),
        (another_size, "another part of the package"),
    ],
)
def test_a_store_that_does_something_else_is_not_asked_again(
    store: Any, tmp_path: Path, answer: Answer, message: str
) -> None:
    store.script[:] = [answer]
    with pytest.raises(ProtocolViolation, match=message):
        fetch(store, tmp_path / "part")
    assert len(store.seen) == 1
    fetch(store, tmp_path / "part")  # and what it sent does no harm to the next try
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_store_that_never_comes_to_an_end_is_left(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "SLACK_SECONDS", -1.0)  # no time at all
    store.script[:] = [drips]
    with pytest.raises(VaultUnreachable, match="took too long"):
        fetch(store, tmp_path / "part")
    assert len(store.seen) == 1


def test_no_origin_is_asked_that_the_operator_did_not_name(store: Any, tmp_path: Path) -> None:
    for origins in ((), ("https://store.example",)):
        with pytest.raises(ProtocolViolation, match="--package-origins does not name it"):
            fetch(store, tmp_path / "part", origins=origins)
    hidden = Platform("http://user:secret@127.0.0.1")
    with pytest.raises(ProtocolViolation) as refusal:
        Downloads(hidden, ["http://127.0.0.1"]).fetch(DIGEST, 10, tmp_path / "part")  # type: ignore[arg-type]
    assert "secret" not in str(refusal.value)
    assert store.seen == [] and not (tmp_path / "part").exists()


def test_the_flag_takes_origins_alone(tmp_path: Path) -> None:
    import argparse

    def parsed(origins: str) -> PlatformConfig | None:
        parser = argparse.ArgumentParser()
        add_flags(parser)
        arguments = ["--platform-url", "https://p.example", "--advertise-url", "http://10.0.0.1:1", "--state-dir", "/x"]
        return from_args(parser.parse_args([*arguments, "--package-origins", origins]))

    found = parsed("https://s3.example, http://10.0.0.9:9000")
    assert found is not None and found.package_origins == {"https://s3.example", "http://10.0.0.9:9000"}
    for wrong in ("s3.example", "https://s3.example/bucket", "*"):
        with pytest.raises(ConfigError, match="--package-origins"):
            parsed(wrong)
