"""Orders of the platform to a replica: `POST /admin/{action}`, JSON in and out, each with a ticket for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from protocol.messages import Answer, Attempt, Bytes32, Digest, Empty, Id, Request, Token

ADMIN_PATH = "/admin/{action}"
MAX_JOURNAL_KEYS = 500  # of one request: the answer, with a receipt of 700 bytes for each, fits a message
MAX_CONVERSATIONS = 256


class VerifyRequest(Request, frozen=True):
    """Verify a package: lease, fetch, decrypt, strict intake, smoke prompts."""

    digest: Digest


class Refused(Answer, frozen=True):
    """Why an adapter is refused, safe to show to its creator."""

    field: str
    rule: str
    message: str


class Verification(Answer, frozen=True, omit_defaults=True):
    """The outcome: a `report` when `ok`, else a `refusal`."""

    ok: bool
    report: dict[str, Any] | None = None
    refusal: Refused | None = None


class RevokeRequest(Request, frozen=True):
    """Refuse, abort, evict and zero these adapters."""

    digests: Annotated[list[Digest], msgspec.Meta(max_length=10_000)]


class Revocation(Answer, frozen=True):
    """The adapters that were dropped, and how many running predictions were aborted."""

    revoked: list[str]
    aborted: int


class PrefetchRequest(Request, frozen=True):
    """Load adapters that may be asked for soon, most wanted first, where they displace only what is worth less."""

    digests: Annotated[list[Digest], msgspec.Meta(max_length=1_000)]


class Prefetched(Answer, frozen=True):
    """How many hints were taken; loading goes on afterwards."""

    hinted: int


class ForgetRequest(Request, frozen=True):
    """Forget the KV and the answers of these cache scopes: their organizations were erased."""

    scopes: Annotated[list[Id], msgspec.Meta(max_length=1_000)]


class Forgotten(Answer, frozen=True):
    """The scopes of which nothing is left."""

    scopes: list[str]


class CancelRequest(Request, frozen=True):
    """Stop one attempt of a prediction, also one that has not arrived yet.

    Its receipt counts at most `delivered_tokens` completion tokens: those that reached the client.
    """

    jti: Id
    attempt: Attempt
    delivered_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Cancelled(Answer, frozen=True):
    """The prediction was told to stop, or had ended."""

    jti: str


class JournalKey(Request, frozen=True):
    """One attempt of a prediction."""

    jti: Id
    attempt: Attempt


class JournalRequest(Request, frozen=True):
    """Ask what became of predictions, also those that an earlier boot of the same name ran."""

    predictions: Annotated[list[JournalKey], msgspec.Meta(max_length=MAX_JOURNAL_KEYS)]


class JournalState(Answer, frozen=True):
    """An attempt cut off by a crash is final, `interrupted`, with the tokens of its last checkpoint."""

    state: Literal["unknown", "running", "final"]
    receipt: str | None = None


class JournalAnswer(Answer, frozen=True):
    """The states of the predictions, in the order of the request."""

    states: list[JournalState]


class Draining(Answer, frozen=True):
    """New predictions are refused from now on; running ones finish."""

    draining: bool


class ConversationsRequest(Request, frozen=True):
    """Ask for the conversations that were used last, as far as their KV is in memory."""

    most: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONVERSATIONS)]


class Conversation(Answer, frozen=True):
    """The KV of a beginning of prompts: its owner, the key of its last block, and its tokens."""

    cache_scope: str
    adapter: Digest | None
    key: Bytes32
    tokens: int


class Conversations(Answer, frozen=True):
    """Conversations, the last used first."""

    conversations: list[Conversation]


class PullOrder(Request, frozen=True):
    """One conversation to pull from another replica, by the ticket for it."""

    ticket: Token
    key: Bytes32


class PullOrders(Request, frozen=True):
    """Pull conversations that another replica hands over, most wanted first."""

    orders: Annotated[list[PullOrder], msgspec.Meta(max_length=MAX_CONVERSATIONS)]


class Pulling(Answer, frozen=True):
    """How many orders were taken; pulling goes on afterwards."""

    taken: int


class ReplicaFigures(Answer, frozen=True, kw_only=True):
    """Figures since start and of this moment, each a number: heartbeats and the fleet link carry them.

    seats: sequences that run at once
    waits: predicted seconds until a new sequence starts, by latency class: interactive, standard, batch
    load_seconds: predicted seconds of a load of an adapter
    draining: it finishes what it has and refuses new predictions
    prefill_seconds: predicted seconds of a prompt of 1,000 tokens that is computed alone
    kv_token_bytes: bytes of KV per token; pull_rate: bytes per second of the latest pulls from other replicas
    confinement_missing: layers of the verifying child's confinement that this replica's system refuses
    """

    steps: int
    max_adapters_in_one_batch: int
    batches_with_several_adapters: int
    prompt_tokens: int
    generated_tokens: int
    finished: int
    failed: int
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    prefix_lookup_tokens: int = 0
    prefix_hit_tokens: int = 0
    seats: int = 0
    waits: tuple[float, float, float] = (0.0, 0.0, 0.0)
    load_seconds: float = 0.0
    draining: bool = False
    prefill_seconds: float = 0.0
    kv_token_bytes: int = 0
    pull_rate: float = 0.0
    confinement_missing: tuple[str, ...] = ()


class ReplicaStats(ReplicaFigures, frozen=True, kw_only=True):
    """A replica's figures, and what is resident and leased now."""

    resident: list[str]
    leased: list[str]


# The request and the answer of each action.
CALLS: dict[str, tuple[type[Request], type[Answer]]] = {
    "verify": (VerifyRequest, Verification),
    "revoke": (RevokeRequest, Revocation),
    "prefetch": (PrefetchRequest, Prefetched),
    "forget": (ForgetRequest, Forgotten),
    "cancel": (CancelRequest, Cancelled),
    "journal": (JournalRequest, JournalAnswer),
    "stats": (Empty, ReplicaStats),
    "drain": (Empty, Draining),
    "conversations": (ConversationsRequest, Conversations),
    "pull": (PullOrders, Pulling),
}
