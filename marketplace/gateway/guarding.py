"""The body that goes out: what a replica gets of a request, once the guards of its key and of its model have judged it.

Without a policy that is the caller's own body, byte for byte, at no cost. With one it is the masked body, from which
everything after follows: tokens, hold, ticket, price. The caller's own body stays what an idempotency key compares.

A guard is a pure function of a policy and the texts of a request. The one that is here finds personal data by patterns;
another one (a classifier that runs on a replica) would be asked in `_judged`, too, and its verdict counted beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import orjson
from django.conf import settings
from redis.asyncio import Redis

from marketplace.accounts.errors import Refusal
from marketplace.gateway.errors import bad_request, unavailable
from marketplace.gateway.offers import Offer
from marketplace.gateway.principals import Principal
from marketplace.gateway.requests import END_USER_HEADER, PredictionRequest
from marketplace.guards.counts import Owner, add_counts
from marketplace.guards.finder import MAX_CHARACTERS, Finder, FinderBusy, FinderFailed, FinderMissing
from marketplace.guards.masking import Mask, Masked, Refused, Span, mask_body, texts_of
from marketplace.guards.policies import KINDS, PACKAGE, Policy
from marketplace.guards.texts import Unmaskable

logger = logging.getLogger(__name__)

Headers = Mapping[bytes, bytes]
Parse = Callable[[bytes, Headers], PredictionRequest]
_END_USER = END_USER_HEADER.encode()
_JSON_FORMATS = ("json_object", "json_schema")
_ASIDE_BYTES = 2**16
Result = TypeVar("Result")


@dataclass(frozen=True, repr=False)
class Outgoing:
    """The body for a replica, and the request in it; `mask` puts values back into the answer, None: none are out."""

    body: bytes
    request: PredictionRequest
    mask: Mask | None = None


class Guarding:
    """The guards of one gateway process. Nothing is imported, started or asked before a policy has to be kept."""

    def __init__(self, valkey: Redis) -> None:
        """Take the connection for the counts."""
        self.finder = Finder()
        self._valkey = valkey

    def close(self) -> None:
        """End what was started."""
        self.finder.close()

    async def outgoing(
        self, principal: Principal, offer: Offer, came: Outgoing, headers: Headers, parse: Parse
    ) -> Outgoing:
        """Return the body that goes out for the one that came; `parse` reads it as the first was read.

        Raises Refusal 400 for what a policy refuses and for what cannot be masked, 503 where it cannot be searched.
        """
        policy = principal.guards.stricter(offer.guards)
        if not policy:
            return came
        owners = _owners(principal, offer)
        try:
            masked = await self._judged(principal, offer, policy, came.body, headers)
        except Refused as refused:
            await add_counts(self._valkey, owners, [f"refuse:{refused.kind}"])
            raise _refusal(refused.kind, principal, offer) from None
        except Unmaskable as fault:
            raise bad_request(fault.message, fault.field, code="cannot_be_masked") from None
        if masked.kinds:
            await add_counts(self._valkey, owners, [f"mask:{kind}" for kind in sorted(masked.kinds)])
        if masked.end_user is not None:
            headers = {**headers, _END_USER: masked.end_user.encode()}
        body = orjson.dumps(masked.body)
        return Outgoing(body, parse(body, headers), masked.mask if masked.mask.values else None)

    async def _judged(
        self, principal: Principal, offer: Offer, policy: Policy, came: bytes, headers: Headers
    ) -> Masked:
        """Return the masked body. Raises Refused, Unmaskable and Refusal 400 or 503."""
        body: dict[str, Any] = orjson.loads(came)
        end_user = None if _END_USER not in headers else headers[_END_USER].decode("utf-8", "replace")
        large = len(came) > _ASIDE_BYTES
        texts = await _call(large, texts_of, body, *([] if end_user is None else [end_user]))
        return await _call(
            large,
            mask_body,
            body,
            await self._found(principal.organization_id, policy, texts),
            policy,
            pseudonym=lambda name: _pseudonym(principal.organization_id, name),
            end_user=end_user,
            json_answer=_answers_json(body, offer),
        )

    async def _found(self, organization_id: UUID, policy: Policy, texts: list[str]) -> dict[str, list[Span]]:
        """Return the findings of each text. Raises Refusal 400 or 503."""
        characters = sum(map(len, texts))
        if characters > MAX_CHARACTERS:
            message = (
                f"The texts with digits, @ or : have {characters:,} characters; at most {MAX_CHARACTERS:,} can be "
                "searched for personal data. Nothing was charged."
            )
            raise bad_request(message, code="too_long_to_mask")
        if not texts:
            return {}
        try:
            found = await self.finder.find(sorted(policy.kinds), texts, asker=organization_id)
        except FinderBusy:
            message = "Too many requests wait to be searched for personal data. Nothing was charged; try again."
            raise unavailable(message, code="masking_busy", retry_after=1) from None
        except FinderMissing:
            message = (
                f"Personal data cannot be searched for: the Python package {PACKAGE} is not installed here. Nothing "
                "was sent on or charged."
            )
            raise Refusal(message, code="masking_unavailable", status=503) from None
        except FinderFailed as error:
            logger.warning("personal data not searched for: %s", error)
            message = "Personal data was not searched for in time. Nothing was sent on or charged; try again."
            raise unavailable(message, code="masking_failed") from None
        return dict(zip(texts, found, strict=True))


async def _call(aside: bool, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    """Call a pure function, in a thread where its walk through a large body would keep others waiting."""
    return await asyncio.to_thread(function, *arguments, **named) if aside else function(*arguments, **named)


def _answers_json(body: dict[str, Any], offer: Offer) -> bool:
    """Return whether the answer's text is JSON, because the caller or the model's contract asks for that."""
    response_format = body.get("response_format")
    asked = isinstance(response_format, dict) and response_format.get("type") in _JSON_FORMATS
    contract = offer.contract
    return asked or (contract is not None and contract.output_schema is not None)


def _owners(principal: Principal, offer: Offer) -> list[tuple[Owner, UUID]]:
    """Return for whom an act is counted: the key, and the model where its creator has a policy."""
    owners: list[tuple[Owner, UUID]] = [] if principal.api_key_id is None else [("key", principal.api_key_id)]
    return [*owners, ("model", offer.model_id)] if offer.guards else owners


def _refusal(kind: str, principal: Principal, offer: Offer) -> Refusal:
    whose = "This API key" if kind in principal.guards.refused else "The creator of this model"
    message = f"{whose} refuses {KINDS[kind]} (rule refuse:{kind}). Nothing was sent on or charged."
    return bad_request(message, code="guard_refused")


def _pseudonym(organization_id: UUID, name: str) -> str:
    """Return the name of an end user whose own name is personal data: the same each time, for this organization."""
    key = settings.ENV.api_key_pepper.encode()
    digest = hmac.new(key, b"end user\0" + organization_id.bytes + name.encode(), hashlib.sha256).hexdigest()
    return f"masked-{digest[:20]}"
