"""Makes the calls of a purse, several at once, until they are answered or the purse can pay no more."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from django.conf import settings

from marketplace.accounts.models import ApiKey
from marketplace.accounts.run_tokens import LIFETIME_SECONDS, issue_run_token
from protocol.messages import PREDICTION_EXTRA_KEY

if TYPE_CHECKING:
    import httpx

CONCURRENCY = 8
CALL_SECONDS = 180.0  # of one call with its retries
LONGEST_WAIT = 5.0  # seconds between two tries
_RENEW_SECONDS = LIFETIME_SECONDS / 2

EndCode = Literal["budget", "credit", "withdrawn", "stopped", "unavailable"]
_ENDS: Final[dict[int, tuple[EndCode, str]]] = {
    401: ("stopped", "the key of the run was revoked or has expired"),
    403: ("withdrawn", "the model was withdrawn"),
    404: ("withdrawn", "the model is not for sale"),
}


@dataclass(frozen=True, slots=True, repr=False)
class ChatCall:
    """One chat completion. `name`: at most 200 printable characters, unique among the calls of its purse.

    `body` is that of `/v1/chat/completions` (model, messages, …); it is sent as it is, and asks for no stream.
    `bare_base`: the contract is applied, and the adapter's weights are not; the receipt says so.
    `teaches`: replicas may draft every customer's answers from this one.
    `checkpoint`: the fingerprint of the one that is to answer; `measures`: to clear the version for it, for nothing.
    """

    name: str
    body: dict[str, Any]
    bare_base: bool = False
    teaches: bool = False
    checkpoint: str = ""
    measures: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class ChatAnswer:
    """The answer of a call, charged with `cost_nano_usd`. Its receipt is known by `prediction_id`."""

    name: str
    text: str
    finish_reason: str
    prediction_id: UUID
    cost_nano_usd: int
    # As the API gave it, with whatever was asked beside the text.
    choice: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class CallRefused:
    """The API refuses this call for good and charged nothing: `status` and `code` are those of docs/api.md."""

    name: str
    status: int
    code: str


class CallsEnded(Exception):
    """No further call can be made. `code` is for programs, the text is a sentence without anybody's text."""

    def __init__(self, code: EndCode, message: str) -> None:
        super().__init__(message)
        self.code: EndCode = code


@dataclass(frozen=True, slots=True)
class _NoRoom:
    """Budget or credit cannot cover this call now; what others in flight give back may suffice. If not, it is `end`."""

    call: ChatCall
    end: CallsEnded


_Outcome = ChatAnswer | CallRefused | CallsEnded | _NoRoom


class Caller:
    """A context manager, for one thread; the calls themselves run in threads that touch no database."""

    def __init__(self, purse: ApiKey, *, concurrency: int = CONCURRENCY, call_seconds: float | None = None) -> None:
        """Take a purse of `open_purse`; make at most `concurrency` calls at once, each within `call_seconds`."""
        call_seconds = CALL_SECONDS if call_seconds is None else call_seconds
        self._purse = purse
        self._concurrency = concurrency
        self._call_seconds = call_seconds
        self._tokens: dict[tuple[bool, bool, str, bool], tuple[str, float]] = {}
        import httpx  # a worker's: the web process knows this module, and stays light

        # No proxy of the environment: prompts go to the platform's own address alone.
        self._client = httpx.Client(base_url=settings.ENV.api_url, timeout=call_seconds, trust_env=False)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self, calls: Iterable[ChatCall]) -> Iterator[ChatAnswer | CallRefused]:
        """Yield the outcome of each call as it comes. Raises CallsEnded once those in flight were yielded."""
        waiting, refused = iter(calls), deque[ChatCall]()
        running: dict[Future[_Outcome], bool] = {}  # whether nothing else could be in flight beside it
        most, end = self._concurrency, None
        with ThreadPoolExecutor(self._concurrency) as pool:
            while True:
                while end is None and len(running) < most:
                    call = refused.popleft() if refused else next(waiting, None)
                    if call is None:
                        break
                    alone = most == 1 and not running
                    running[pool.submit(self._outcome, call)] = alone
                if not running:
                    break
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    alone, outcome = running.pop(future), future.result()
                    if isinstance(outcome, _NoRoom) and not alone:
                        refused.append(outcome.call)
                        most = 1  # from here on nothing but the call itself is set aside of the budget
                    elif isinstance(outcome, _NoRoom):
                        end = end or outcome.end
                    elif isinstance(outcome, CallsEnded):
                        end = end or outcome
                    else:
                        yield outcome
        if end is not None:
            raise end

    def _outcome(self, call: ChatCall) -> _Outcome:
        """Make one call, again and again while the platform is busy or away."""
        import httpx

        deadline, pause = time.monotonic() + self._call_seconds, 0.1
        while True:
            try:
                answer = self._client.post("/v1/chat/completions", json=call.body, headers=self._headers(call))
            except httpx.TransportError:
                outcome, wish = None, 0.0
            else:
                outcome, wish = _read(call, answer), _retry_after(answer)
            if outcome is not None:
                return outcome
            pause = min(pause * 2, LONGEST_WAIT)
            if time.monotonic() + max(pause, wish) > deadline:
                return CallsEnded("unavailable", f"the platform gave no answer within {self._call_seconds:.0f} s")
            time.sleep(max(pause, wish))

    def _headers(self, call: ChatCall) -> dict[str, str]:
        kind = call.bare_base, call.teaches, call.checkpoint, call.measures
        token, made = self._tokens.get(kind, ("", 0.0))
        if not token or time.monotonic() - made > _RENEW_SECONDS:
            token = issue_run_token(
                key=self._purse,
                bare_base=call.bare_base,
                teaches=call.teaches,
                checkpoint=call.checkpoint,
                measures=call.measures,
            )
            self._tokens[kind] = token, time.monotonic()
        return {"authorization": f"Bearer {token}", "idempotency-key": f"run:{self._purse.pk.hex}:{call.name}"}


def _read(call: ChatCall, answer: httpx.Response) -> _Outcome | None:
    """Return what an answer of the API means for the call; None: try again under the same name."""
    if answer.status_code == 200:
        return _whole(call, answer.json())
    code = _code(answer)
    if code == "budget_exceeded":
        return _NoRoom(call, CallsEnded("budget", "the budget of the run is used up"))
    if answer.status_code == 402:
        return _NoRoom(call, CallsEnded("credit", "the organization's credit is used up"))
    if answer.status_code in _ENDS:
        return CallsEnded(*_ENDS[answer.status_code])
    # An outcome that is unknown becomes known under the same name.
    if answer.status_code == 429 or answer.status_code >= 500 or code == "in_progress":
        return None
    return CallRefused(call.name, answer.status_code, code)


def _whole(call: ChatCall, body: dict[str, Any]) -> ChatAnswer | None:
    about, choice = body[PREDICTION_EXTRA_KEY], body["choices"][0]
    if not about["settled"]:  # the books were away; asked again, the answer has its cost
        return None
    return ChatAnswer(
        name=call.name,
        text=choice["message"]["content"] or "",
        finish_reason=choice["finish_reason"],
        prediction_id=UUID(about["prediction_id"]),
        cost_nano_usd=body["usage"]["cost_nano_usd"],
        choice=choice,
    )


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


def _retry_after(answer: httpx.Response) -> float:
    wish = answer.headers.get("retry-after", "")
    return min(float(wish), LONGEST_WAIT) if wish.isdigit() else 0.0
