"""The platform double behind a real HTTP server on loopback, with the faults that its switches ask for."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from tests.creator_cli.platform_bodies import payout_overview_body
from tests.creator_cli.platform_double import Platform, Refuse
from tests.protocol.proofs import made


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    platform: Platform

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        platform = self.platform
        path = self.path.partition("?")[0].removeprefix("/api/v1/")
        platform.requests.append((self.command, path))
        try:
            for wanted, left in platform.failures.items():
                method, _, pattern = wanted.partition(" ")
                if left and method == self.command and re.search(pattern, path):
                    platform.failures[wanted] -= 1
                    raise Refuse(503, "unavailable", "come back later")
            is_open = path in ("tokens", "vault/intake-key", "bases", "receipts/keys") or path.startswith("/oauth/")
            if not is_open and self._token() not in platform.tokens:
                raise Refuse(401, "invalid_key", "this key is not valid")
            status, value, headers = self._dispatch(path)
        except Refuse as refuse:
            body: dict[str, Any] = {"code": refuse.code, "message": refuse.message, "request_id": "r-1"}
            if refuse.field:
                body["param"] = refuse.field
            status = refuse.status
            value = {"error": body}
            headers = refuse.headers
            self.close_connection = True
        if status == 0:  # cut
            self.close_connection = True
            self.connection.close()
            return
        data = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_PUT = do_HEAD = do_DELETE = _serve

    def _token(self) -> str:
        return str(self.headers.get("Authorization", "")).removeprefix("Bearer ")

    def _body(self) -> dict[str, Any]:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.platform.bodies.append(data)
        return json.loads(data or b"{}")

    def _dispatch(self, path: str) -> tuple[int, Any, dict[str, str]]:
        platform = self.platform
        method = self.command
        if path.startswith("/oauth/"):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            answer = platform.logins.dispatch(path, data)
            if answer is not None:
                return *answer, {}
        if found := re.fullmatch(r"(versions|eval-sets)/([^/]+)/package", path):
            sets = platform.evals.sets
            return self._package(found[2], sets[found[2]] if found[2] in sets else platform.version(found[2]))
        if (answer := platform.evals.dispatch(method, path, self._body)) is not None:
            return self._page(answer[1]) if isinstance(answer[1], list) else (*answer, {})
        consumed = platform.consumption.dispatch(method, path, self.path.partition("?")[2], self._body)
        if consumed is not None:
            if isinstance(consumed, bytes):
                return 200, consumed, {}
            return self._page(consumed) if isinstance(consumed, list) else (*consumed, {})
        if (clear := platform.precisions.dispatch(method, path, self._body)) is not None:
            return self._page(clear) if isinstance(clear, list) else (*clear, {})
        if (answer := platform.rollouts.dispatch(method, path, self._body)) is not None:
            return *answer, {}
        if found := re.fullmatch(r"versions/([^/]+)/(publish|retire|revoke)", path):
            self._body()
            return *platform.act(found[1], found[2]), {}
        if found := re.fullmatch(r"reviews/([^/]+)/appeal", path):
            self._body()
            return *platform.appeal(found[1]), {}
        if found := re.fullmatch(r"versions/([^/]+)/complete", path):
            return *platform.complete(found[1], self._body()), {}
        if found := re.fullmatch(r"versions/([^/]+)/holders", path):
            return *platform.holders(found[1]), {}
        if found := re.fullmatch(r"versions/([^/]+)", path):
            return *platform.poll_version(found[1]), {}
        if found := re.fullmatch(r"models/([^/]+/[^/]+)/versions", path):
            if method == "POST":
                return *platform.start_version(found[1], self._body()), {}
            mine = [platform.version(v["id"]) for v in platform.versions.values() if v["model"] == found[1]]
            public = [{k: x for k, x in v.items() if k not in ("dek", "polls")} for v in reversed(mine)]
            return self._page(public)
        if found := re.fullmatch(r"models/([^/]+/[^/]+)/prices", path):
            if method == "GET":
                return self._page(platform.prices.get(found[1], []))
            return *platform.set_price(found[1], self._body()), {}
        if found := re.fullmatch(r"models/([^/]+/[^/]+)/custody", path):
            return *platform.custody(found[1]), {}
        if found := re.fullmatch(r"models/([^/]+/[^/]+)", path):
            if method == "PATCH":
                platform.model(found[1]).update(self._body())
            return 200, platform.model(found[1]), {}
        if path == "models" and method == "POST":
            return *platform.create_model(self._body()), {}
        if path == "models":
            return self._page(list(platform.models.values()))
        if path == "payouts" and method == "GET":
            return self._page(platform.payouts)
        if path == "bases":
            return self._page(platform.bases)
        simple: dict[str, Callable[[], tuple[int, Any]]] = {
            "POST tokens": lambda: platform.create_token(self._body()),
            "GET me": platform.me,
            "POST organizations/acme/signing-keys": lambda: platform.register_signing_key(self._body()),
            "GET vault/intake-key": lambda: (200, platform.intake_json()),
            "GET custody": platform.export,
            "GET earnings": lambda: platform.earnings(self.path),
            "GET receipts/keys": lambda: (200, json.loads(msgspec.json.encode(platform.receipt_keys))),
            f"GET receipts/{made.PREDICTION}": lambda: (200, json.loads(platform.receipt)),
            "GET payouts/overview": lambda: (200, payout_overview_body()),
            "POST payouts": lambda: platform.start_payout(self._body()),
            "POST payouts/setup": platform.open_payout_setup,
            f"DELETE keys/{platform.key_id}": lambda: platform.delete_key(self._token()),
        }
        if f"{method} {path}" not in simple:
            raise Refuse(404, "not_found", "there is no such operation")
        return *simple[f"{method} {path}"](), {}

    def _page(self, rows: list[Any]) -> tuple[int, Any, dict[str, str]]:
        """Two rows a page, the cursor on a host of its own: clients must take the cursor alone."""
        found = re.search(r"cursor=(\d+)", self.path)
        start = int(found[1]) if found else 0
        more = start + 2 < len(rows)
        following = f"http://elsewhere.example/api/v1/x?cursor={start + 2}" if more else None
        return 200, {"next": following, "previous": None, "results": rows[start : start + 2]}, {}

    def _package(self, version_id: str, version: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        platform = self.platform
        part = platform.parts[version_id]
        if self.command == "HEAD":
            return 200, None, {"Upload_Offset": str(len(part)), "Upload_Length": str(version["package_size"])}
        if version["state"] != "uploading":
            raise Refuse(409, "upload_closed", "start a new version")
        if int(self.headers["Upload-Offset"]) != len(part) or platform.wrong_offset_once:
            platform.wrong_offset_once = False
            raise Refuse(409, "offset_mismatch", "the upload is elsewhere", Upload_Offset=str(len(part)))
        if platform.interrupt_after:
            call, platform.interrupt_after = platform.interrupt_after, None
            call()
        left = int(self.headers["Content-Length"])
        while left:
            size = min(left, 4096)
            if platform.drop_after is not None:
                size = min(size, platform.drop_after - len(part))
                if size <= 0:
                    platform.drop_after = None
                    return 0, None, {}
            data = self.rfile.read(size)
            part += data
            left -= len(data)
        return 204, None, {"Upload_Offset": str(len(part))}


class RunningPlatform:
    """The double on a free loopback port, until `stop`."""

    def __init__(self, folder: Path | None = None, port: int = 0, **fields: Any) -> None:
        self.platform = Platform(folder or Path(tempfile.mkdtemp()), **fields)
        handler = type("BoundHandler", (Handler,), {"platform": self.platform})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
