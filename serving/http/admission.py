"""Authorization of requests and reports of their outcome: the seam between the HTTP front and the platform."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from protocol.latency import LatencyClass
from protocol.requests.bodies import AnyBody
from serving.adapters.directory import DirectoryAdapterSource
from serving.core import AdapterRef, Request, Usage
from serving.http.errors import ApiError


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request as an authorizer sees it: lower-case header names, the body's exact bytes, and the parsed body."""

    path: str
    headers: Mapping[str, str]
    raw_body: bytes
    body: AnyBody


@dataclass(frozen=True, slots=True)
class Admission:
    """The grant of an authorizer. deadline is on the `time.monotonic` clock; limits None: the model's own.

    max_prompt_tokens, max_tokens: over all prompts, and all completions, of the request
    weight: the tenant's share relative to others
    latency_class: the one that was paid for; None: that of the body
    stop_at_grant: a completion that ends because max_tokens is less than its body asks for ends with "budget"
    contract: the package whose contract holds, where the adapter is none: the bare base answers as its adapter would
    teaches: the platform's own call: every scope's drafts may come from its answer
    signs_of_life: the caller wants a byte each second from the first second of silence on (`keep_alive.py`), also
    before a whole answer; a stream has them for every caller
    conversation: key of what the turns of a conversation share
    stopped: set when the request was cancelled; it may not be in the engine yet
    prompt_alone: the prompt is computed for another replica, and nothing is generated
    bring: pulls the KV of the request's prompt from another replica, as far as that is of use; None: there is none
    """

    request_id: str
    tenant: str
    cache_scope: str
    adapter: AdapterRef
    deadline: float | None = None
    max_prompt_tokens: int | None = None
    max_tokens: int | None = None
    weight: float = 1.0
    latency_class: LatencyClass | None = None
    stop_at_grant: bool = False
    contract: str | None = None
    teaches: bool = False
    signs_of_life: bool = False
    conversation: int | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    prompt_alone: bool = False
    bring: Callable[[Request], Awaitable[Request]] | None = None


class RequestAuthorizer(Protocol):
    """The policy that decides what an HTTP request may do."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        """Return the request's grant. Raises ApiError to refuse it."""
        ...

    async def model_names(self) -> list[str]:
        """Return the names that /v1/models lists."""
        ...


@dataclass(frozen=True, slots=True)
class Ending:
    """Facts of a request that ended, beside its tokens; None: it is not known, or there is no such thing.

    answer: its place in the closed set of its contract
    queue_seconds: until the engine took its first completion up
    arguments_fit: whether the arguments of all its calls of functions follow the functions' schemas
    """

    answer: int | None = None
    queue_seconds: float | None = None
    arguments_fit: bool | None = None


UNKNOWN = Ending()


class CompletionObserver(Protocol):
    """An observer of all admitted requests, in the server's event loop. `on_finish` is called once per request.

    finish_reason: stop, length, budget, cancelled (by the client or an administrator), revoked, or error.
    """

    def on_progress(self, request_id: str, usage: Usage) -> None:
        """Note a request's usage; called after each delta, before it is sent."""
        ...

    def checkpoint(self, request_id: str, usage: Usage, shown: int) -> str | None:
        """Return a receipt of `shown` completion tokens, which the events of a stream have shown; None: not now."""
        ...

    async def on_finish(
        self, request_id: str, usage: Usage, finish_reason: str, ending: Ending = UNKNOWN
    ) -> dict[str, Any] | None:
        """Note a request's end, before the last event; the client gets the result under PREDICTION_EXTRA_KEY."""
        ...


class SilentObserver:
    """An observer that does nothing, for a replica without a platform."""

    def on_progress(self, request_id: str, usage: Usage) -> None:
        pass

    def checkpoint(self, request_id: str, usage: Usage, shown: int) -> str | None:
        return None

    async def on_finish(
        self, request_id: str, usage: Usage, finish_reason: str, ending: Ending = UNKNOWN
    ) -> dict[str, Any] | None:
        return None


class InsecureAuthorizer:
    """The authorizer of `--insecure`: everyone may call every adapter in the folder by its name, blends of them
    (`a:0.7+b:0.3`), and the bare base as `base`."""

    BASE = "base"

    def __init__(self, source: DirectoryAdapterSource, timeout_s: float) -> None:
        """Raise ConfigError for a folder whose name means something else."""
        source.check_names(self.BASE)
        self._source, self._timeout = source, timeout_s

    async def authorize(self, request: IncomingRequest) -> Admission:
        name = request.body.model
        adapter = AdapterRef()
        if name != self.BASE:
            try:
                found = await asyncio.to_thread(self._source.resolve_model, name, self.BASE)
            except ValueError:  # not a known name
                found = None
            if found is None:
                raise ApiError(404, f"The model '{name}' does not exist.", code="model_not_found", param="model")
            adapter = found
        deadline = time.monotonic() + self._timeout
        return Admission(str(uuid.uuid4()), "anyone", "anyone", adapter, deadline)

    async def model_names(self) -> list[str]:
        names = await asyncio.to_thread(self._source.names)
        return [self.BASE, *(name for name in names if name != self.BASE)]
