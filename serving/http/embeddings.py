"""/v1/embeddings: last-token pooling of the final normed hidden state, L2-normalised."""

from __future__ import annotations

import base64
import struct
from typing import Any

from starlette.types import Receive, Scope, Send

from protocol.messages import PREDICTION_EXTRA_KEY
from protocol.requests.bodies import EmbeddingBody
from serving.core import Request, SamplingParams
from serving.errors import EngineError
from serving.http import parameters
from serving.http.admission import Admission
from serving.http.endpoint import Endpoint, prediction, refuse
from serving.http.errors import json_response
from serving.http.work import Work

_SAMPLING = SamplingParams(temperature=0)


class EmbeddingEndpoint(Endpoint[EmbeddingBody]):
    """The endpoint that returns one vector per input."""

    async def begin(self, body: EmbeddingBody, admission: Admission, http_id: str) -> tuple[Work, None]:
        latency = parameters.latency_class(body, admission)
        prompts = await self.parts.prompts.embedding(body, admission.tenant)
        requests = [
            Request(
                request_id=admission.request_id + (f"#{index}" if index else ""),
                tenant=admission.tenant,
                cache_scope=admission.cache_scope,
                adapter=admission.adapter,
                prompt_token_ids=prompt.token_ids,
                sampling=_SAMPLING,
                max_tokens=0,
                deadline=admission.deadline,
                embed=True,
                latency_class=latency,
                weight=admission.weight,
                family=admission.request_id,
            )
            for index, prompt in enumerate(prompts)
        ]
        self.check_lengths(requests, prompts, admission)
        return self.work(requests, 1, admission, http_id), None

    async def answer(
        self, work: Work, form: None, body: EmbeddingBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        vectors: dict[int, bytes] = {}
        try:
            async for index, delta in work.deltas():
                vectors[index] = delta.embedding or b""
        except EngineError as error:
            await refuse(work, error, scope, receive, send)
            return
        extra = await work.close(work.finish_reason)
        usage = work.usage
        answer = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _written(vectors[index], body.encoding_format)}
                for index in sorted(vectors)
            ],
            "model": body.model,
            "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.total_tokens},
        }
        answer |= {} if extra is None else {PREDICTION_EXTRA_KEY: extra}
        await json_response(answer, headers=prediction(work))(scope, receive, send)


def _written(vector: bytes, encoding: str | None) -> Any:
    """Return the vector as JSON; base64 means little-endian float32, as OpenAI's client reads it."""
    values = struct.unpack(f"={len(vector) // 4}f", vector)
    if encoding == "float":
        return list(values)
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
