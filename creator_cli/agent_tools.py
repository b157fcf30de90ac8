"""The tools of `intarsia mcp`: search the catalogue, quote a prediction, buy one, see what is left. No MCP in here.

Every prediction is a call of one run, which is opened with the first of them: the platform holds its budget, number of
calls and deadline, whatever the agent does. Prompts and answers pass through; nothing of them is kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from creator_cli.errors import ApiError, CliError
from creator_cli.http_client import HttpClient
from creator_cli.reading import Reader
from creator_cli.session import Session
from protocol.money import usd

RUN_HEADER = "X-Intarsia-Run"
MAX_FOUND = 20
_NEXT = {
    "run_budget_exceeded": "Ask the person to start the server with a larger --budget, or use fewer max_tokens.",
    "run_calls_exhausted": "Ask the person to start the server with more --max-calls.",
    "run_expired": "Ask the person to start the server again: its --deadline has passed.",
    "run_closed": "The run was closed by a person; ask before you go on.",
    "insufficient_funds": "Ask the person to top up the organization's credit.",
    "scope_missing": "The key needs the scope predict: intarsia login --scope predict --scope read.",
    "model_not_found": "Use the tool search for the names of models.",
}


# Results are without slots: the MCP SDK would take a slot for the default of its field.
@dataclass(frozen=True)
class Amount:
    """An amount of money, exactly and for people."""

    nano_usd: int
    usd: str

    @classmethod
    def of(cls, nano_usd: int) -> Amount:
        """Return the amount of so many nano-dollars."""
        return cls(nano_usd, usd(nano_usd))


@dataclass(frozen=True)
class Found:
    """A model of the catalogue. Prices are dollars per million tokens, and dollars per prediction."""

    model: str
    title: str
    summary: str
    input_usd_per_million_tokens: str | None
    output_usd_per_million_tokens: str | None
    usd_per_prediction: str | None
    needs_access: bool


@dataclass(frozen=True)
class Catalogue:
    """The models that a search found, best first."""

    models: list[Found]


@dataclass(frozen=True)
class Quote:
    """The cost of a prediction before it is made; `typical` is None where too little was measured."""

    model: str
    at_most: Amount
    typical: Amount | None


@dataclass(frozen=True)
class Answer:
    """An answer and its cost. `finish_reason` other than stop: it was cut. `receipt` is where its receipt is."""

    text: str
    finish_reason: str
    cost: Amount
    left_in_run: Amount
    prediction_id: str
    receipt: str


@dataclass(frozen=True)
class RunState:
    """The budget, number of calls and deadline that all predictions of this server share."""

    run_id: str
    status: str
    budget: Amount
    spent: Amount
    left: Amount
    calls: int
    max_calls: int
    deadline: str


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The limits of the run: nano-dollars, calls, seconds from its opening."""

    max_cost_nano_usd: int
    max_calls: int
    deadline_s: int


class AgentTools:
    """The acts of an agent at one platform, with one person's key, within one run. Thread-safe; all raise CliError."""

    def __init__(self, session: Session, terms: RunTerms) -> None:
        """Open nothing yet."""
        self._url, self._terms = session.url, terms
        self._catalogue = HttpClient(session.url, None, patient=False)  # public: the key stays here
        self._gateway = HttpClient(session.url, session.token, patient=False, root="v1", single=True)
        self._run_id: str | None = None
        self._lock = threading.Lock()

    def search(self, query: str, limit: int = 5) -> Catalogue:
        """Find models for sale by words or meaning, best first. Costs nothing."""
        params = {"q": query, "limit": str(min(max(limit, 1), MAX_FOUND))}
        found = Reader(self._catalogue.request("GET", "models", params=params).json(), "models")
        return Catalogue([_found(row) for row in found.items("results")])

    def quote(
        self,
        model: Annotated[str, "org/slug, as search gives it"],
        message: str,
        max_tokens: Annotated[int, "tokens of the answer at most"] = 256,
    ) -> Quote:
        """Say what a prediction costs at most and typically, before it is bought. Costs nothing."""
        quoted = Reader(self._ask("POST", "quote", _body(model, message, max_tokens)), "quote")
        typical = quoted.integer("typical_nano_usd") if quoted.has("typical_nano_usd") else None
        return Quote(
            model, Amount.of(quoted.integer("worst_case_nano_usd")), None if typical is None else Amount.of(typical)
        )

    def predict(
        self,
        model: Annotated[str, "org/slug, as search gives it"],
        message: str,
        max_tokens: Annotated[int, "tokens of the answer at most"] = 256,
    ) -> Answer:
        """Buy one prediction of a model within the run's budget. Refused before it costs if it does not fit."""
        run_id = self._run()
        answer = Reader(
            self._ask("POST", "chat/completions", _body(model, message, max_tokens), {RUN_HEADER: run_id}), "answer"
        )
        choice = Reader(answer.items("choices")[0], "choice")
        prediction = Reader(answer.mapping("intarsia"), "prediction").text("prediction_id")
        return Answer(
            text=choice.mapping("message").get("content") or "",
            finish_reason=choice.text("finish_reason"),
            cost=Amount.of(Reader(answer.mapping("usage"), "usage").integer("cost_nano_usd")),
            left_in_run=self.run().left,
            prediction_id=prediction,
            receipt=f"{self._url}/api/v1/receipts/{prediction}",
        )

    def run(self) -> RunState:
        """Show the run that pays for the predictions: budget, spent, left, calls and deadline. Costs nothing."""
        found = Reader(self._ask("GET", f"runs/{self._run()}"), "run")
        budget, spent = found.integer("max_cost_nano_usd"), found.integer("spent_nano_usd")
        return RunState(
            run_id=found.text("id"),
            status=found.text("status"),
            budget=Amount.of(budget),
            spent=Amount.of(spent),
            left=Amount.of(budget - spent - found.integer("held_nano_usd")),
            calls=found.integer("calls"),
            max_calls=found.integer("max_calls"),
            deadline=datetime.fromtimestamp(found.integer("deadline_at"), UTC).isoformat(),
        )

    def close(self) -> None:
        """Close the run, so that nothing spends from it any more; the platform closes it at its deadline anyway."""
        with self._lock:
            run_id, self._run_id = self._run_id, None
        if run_id is not None:
            self._ask("POST", f"runs/{run_id}/close", {})

    def _run(self) -> str:
        with self._lock:
            if self._run_id is None:
                terms = {
                    "max_cost_nano_usd": self._terms.max_cost_nano_usd,
                    "max_calls": self._terms.max_calls,
                    "deadline_s": self._terms.deadline_s,
                    "name": "intarsia mcp",
                }
                self._run_id = Reader(self._ask("POST", "runs", terms), "run").text("id")
            return self._run_id

    def _ask(
        self, method: str, path: str, payload: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> Any:
        try:
            return self._gateway.request(method, path, payload=payload, headers=headers).json()
        except ApiError as error:
            error.hint = _NEXT.get(error.code, error.hint)
            raise


def explained(error: CliError) -> str:
    """Return what an agent is told of an error: what happened, the code to look up, and what to do next."""
    return " ".join(part for part in (error.message, f"(code {error.code})", error.hint) if part)


def _body(model: str, message: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": message}], "max_tokens": max_tokens}


def _found(row: Any) -> Found:
    listing = Reader(row, "model")
    price = Reader(listing.mapping("price"), "price") if listing.has("price") else None
    return Found(
        model=listing.text("name"),
        title=listing.text("title"),
        summary=listing.text("summary"),
        input_usd_per_million_tokens=None if price is None else usd(price.integer("input_micro_usd_per_mtok"), 6),
        output_usd_per_million_tokens=None if price is None else usd(price.integer("output_micro_usd_per_mtok"), 6),
        usd_per_prediction=None if price is None else usd(price.integer("per_prediction_nano_usd")),
        needs_access=listing.flag("gated"),
    )
