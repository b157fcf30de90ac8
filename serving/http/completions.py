"""/v1/completions and /v1/chat/completions, streaming or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

from starlette.types import Receive, Scope, Send

from protocol.errors import require
from protocol.messages import PREDICTION_EXTRA_KEY, PREDICTION_HEADER
from protocol.requests import bodies
from protocol.requests.bodies import GenerationBody
from protocol.requests.checks import logprob_count
from serving.core import AdapterRef, Delta, Request, SamplingParams
from serving.errors import EngineError
from serving.http import beam_search, contracts, parameters, rules
from serving.http.admission import Admission
from serving.http.call_judge import CallJudge
from serving.http.endpoint import Endpoint, prediction, refuse
from serving.http.errors import from_engine, json_response
from serving.http.format import ChatFormat, CompletionFormat, Format, Style
from serving.http.prompts import Prompt
from serving.http.rules import ToolUse
from serving.http.wire import EventStream
from serving.http.work import Work

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions
Generation = TypeVar("Generation", bodies.CompletionBody, bodies.ChatBody)


@dataclass(frozen=True, slots=True)
class _Limit:
    """The tokens of one choice, and the finish reason of a choice that has used them all."""

    tokens: int
    reason: Literal["length", "budget"]


class CompletionEndpoint(Endpoint[Generation]):
    """Either completion endpoint; the two differ in how prompts come and how answers are written."""

    async def begin(self, body: Generation, admission: Admission, http_id: str) -> tuple[Work, Format]:
        parts = self.parts
        bare = admission.contract is not None
        terms = await parts.contracts.terms(AdapterRef(admission.contract) if bare else admission.adapter)
        whole = None if terms is None else terms.whole_schema(body)
        beam = beam_search.beam_params(body)
        if terms is not None:
            body = cast(Generation, contracts.applied(body, terms.contract))
        use = rules.tool_use(body)
        each = 1 if beam is not None else body.computed  # a beam search is one request
        # Check the numbers first, so that an error in them does not cost a compilation of the grammar.
        parameters.sampling_params(body, parts.engine.vocab_size, None)
        latency = parameters.latency_class(body, admission)
        if isinstance(body, bodies.ChatBody):
            prompts = await parts.prompts.chat(body, use.told, admission.tenant)
        else:
            prompts = await parts.prompts.completion(body, admission.tenant)
        total = len(prompts) * body.computed
        grammars = parts.grammars.of(admission.tenant)
        tight = terms is not None and terms.contract.output is not None
        grammar = await rules.constraint(body, use, grammars, tight=tight)
        params = parameters.sampling_params(body, parts.engine.vocab_size, grammar)
        params = beam_search.searching(params, beam, grammar)
        limits = [self._limit(body, prompt, admission, total) for prompt in prompts]
        requests = [
            Request(
                request_id=admission.request_id + (f"#{index}" if index else ""),
                tenant=admission.tenant,
                cache_scope=admission.cache_scope,
                adapter=admission.adapter,
                prompt_token_ids=prompts[index // each].token_ids,
                sampling=parameters.of_choice(params, index % each),
                max_tokens=limits[index // each].tokens,
                at_limit=limits[index // each].reason,
                deadline=admission.deadline,
                latency_class=latency,
                weight=admission.weight,
                family=admission.request_id,
                speculate=bool(body.speculation) and beam is None,
                teaches=admission.teaches,
                conversation=admission.conversation,
                # On the bare base, a prefix that all tenants share would tell one of them what another's model is told.
                shared_tokens=0 if terms is None or bare else terms.shared_tokens(prompts[index // each].token_ids),
            )
            for index in range(len(prompts) * each)
        ]
        if admission.prompt_alone:
            requests, each = [_prompt_alone(requests[0])], 1
        self.check_lengths(requests, prompts, admission)
        await parts.sizes.check(body, prompts, requests)
        if admission.bring is not None and len(requests) == 1:
            requests = [await admission.bring(requests[0])]
        alone = body.choices == 1  # of several no single answer could be named
        answers = terms.answers if alone and terms is not None else None
        calls = CallJudge(use, grammars) if alone and use.parses else None
        work = self.work(requests, each, admission, http_id, whole=whole, answers=answers, calls=calls)
        return work, self._format(body, work, prompts, use)

    def _limit(self, body: Generation, prompt: Prompt, admission: Admission, choices: int) -> _Limit:
        """Return the limit of one choice: the grant is shared equally among all that are computed."""
        room = max(1, self.parts.engine.max_model_len - len(prompt.token_ids))
        # The platform has set a limit of its own aside: without one in the body, the grant is the limit.
        short = isinstance(body, bodies.CompletionBody) and admission.max_tokens is None
        default = _DEFAULT_COMPLETION_TOKENS if short else room
        limit = parameters.max_tokens(body, default)
        if admission.max_tokens is None or limit == 0:  # 0: the prompt alone is scored
            return _Limit(limit, "length")
        require(admission.max_tokens >= choices, "n", "asks for more completions than tokens were authorized")
        share = admission.max_tokens // choices
        return _Limit(min(limit, share), "budget" if admission.stop_at_grant and share < limit else "length")

    def _format(self, body: Generation, work: Work, prompts: Sequence[Prompt], use: ToolUse) -> Format:
        decode = self.parts.tokenizer.decode
        echo: tuple[str, ...] = ()
        first_tokens: tuple[int, ...] = ()
        if isinstance(body, bodies.CompletionBody) and body.echo:
            texts = [decode(p.token_ids) if p.text is None else p.text for p in prompts]
            echo = tuple(text for text in texts for _ in range(body.choices))
            if body.logprobs is not None:
                first_tokens = tuple(prompt.token_ids[0] for prompt in prompts for _ in range(body.choices))
        style = Style(
            include_usage=body.include_usage,
            token_ids=bool(body.return_token_ids),
            echo=echo,
            first_tokens=first_tokens,
            tools=use.parses,
            forced=use.forced,
            named=use.named,
            service_tier=body.service_tier,
            logprobs=logprob_count(body) is not None,
            confidence=bool(body.confidence),
        )
        kind = CompletionFormat if isinstance(body, bodies.CompletionBody) else ChatFormat
        return kind(work.request_id, body.model, self.parts.tokenizer, style)

    async def answer(
        self, work: Work, form: Format, body: Generation, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if body.stream and not work.prompt_alone:
            await _stream(work, form, body.include_usage, scope, receive, send)
        else:
            await _whole(work, form, body, scope, receive, send)


def _prompt_alone(request: Request) -> Request:
    """Return what computes the same prompt, with the same KV, and nothing behind it."""
    return replace(request, sampling=SamplingParams(temperature=0), max_tokens=0, at_limit="length", speculate=False)


async def _whole(work: Work, form: Format, body: GenerationBody, scope: Scope, receive: Receive, send: Send) -> None:
    choices: dict[int, list[Delta]] = {}
    try:
        async for index, delta in work.deltas():
            choices.setdefault(index, []).append(delta)
    except EngineError as error:
        await refuse(work, error, scope, receive, send)
        return
    returned = beam_search.returned(body, choices)
    if body.chooses:
        work.returned_tokens = beam_search.token_count(returned)
    extra = await work.close(work.finish_reason)
    answer = form.whole(returned, work.usage)
    answer |= {} if extra is None else {PREDICTION_EXTRA_KEY: extra}
    await json_response(answer, headers=prediction(work))(scope, receive, send)


async def _stream(work: Work, form: Format, include_usage: bool, scope: Scope, receive: Receive, send: Send) -> None:
    """Stream the answer. Errors before the first token get their HTTP status; later errors are events of the stream."""
    events, started = EventStream(send), False
    told: dict[int, int] = {}  # completion tokens of each choice that the events so far show in full
    try:
        async for index, delta in work.deltas():
            if not started:
                started = True
                await events.start([(PREDICTION_HEADER.encode(), work.request_id.encode())])
            if (chunk := form.chunk(index, delta)) is not None:
                if form.shows(delta):
                    told[index] = delta.usage.completion_tokens
                shown = sum(told.values())
                await events.event(chunk, shown, work.checkpoint(shown))
    except EngineError as error:
        if not started:
            await refuse(work, error, scope, receive, send)
            return
        extra = await work.fail(error)
        last = from_engine(error).envelope | ({} if extra is None else {PREDICTION_EXTRA_KEY: extra})
        await events.event(last, sum(told.values()))
    else:
        extra = await work.close(work.finish_reason)
        if include_usage or extra is not None:
            last = form.closing(work.usage) | ({} if extra is None else {PREDICTION_EXTRA_KEY: extra})
            await events.event(last, sum(told.values()))
    await events.done()
