"""The platform's side of a login through the browser, in memory: somebody confirms as soon as they are asked."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

USER_CODE = "WXYZ-2345"


@dataclass
class Logins:
    """`answers` are errors that polls get before the token; `asked` is what the command said of its last login."""

    answers: list[str] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    device_code: str = ""
    device_token: str = ""

    def dispatch(self, path: str, body: bytes) -> tuple[int, Any] | None:
        """Answer a form of the device grant, None for any other path."""
        fields = dict(parse_qsl(body.decode()))
        if path == "/oauth/device/code":
            self.asked, self.device_code = fields, uuid.uuid4().hex
            page = "http://platform.example/device"
            return 200, {
                "user_code": USER_CODE,
                "device_code": self.device_code,
                "verification_uri": page,
                "verification_uri_complete": f"{page}?code={USER_CODE}",
                "expires_in": 600,
                "interval": 0,
            }
        if path == "/oauth/token":
            if self.answers:
                return 400, {"error": self.answers.pop(0)}
            if not self.device_code or fields["device_code"] != self.device_code:
                return 400, {"error": "invalid_grant"}
            self.device_code, self.device_token = "", uuid.uuid4().hex
            return 200, {"access_token": self.device_token, "token_type": "Bearer", "expires_in": 120}
        return None

    def trade(self, token: str) -> str | None:
        """Return an API key for the token, once."""
        if not self.device_token or token != self.device_token:
            return None
        self.device_token = ""
        return f"ik_{uuid.uuid4().hex[:8]}_{uuid.uuid4().hex}"
