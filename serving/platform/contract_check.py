"""Whether a new version's contract can be kept here: its schema, its lengths, and its own examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.contracts import PublicContract
from sealed_weights import Contract, IntakeError
from sealed_weights.payload import CONTRACT_NAME
from serving.constraints import GrammarCompiler, GrammarError, json_spec
from serving.core import Constraint
from serving.errors import ConstraintFailed
from serving.http.contracts import ContractDesk
from serving.tokenization.tokenizer import Tokenizer

LEAST_MESSAGE = 16  # tokens of the context that a contract must leave to its callers


class ContractCheck:
    """The check of one base model's contracts."""

    def __init__(self, desk: ContractDesk, tokenizer: Tokenizer, grammars: GrammarCompiler, max_model_len: int) -> None:
        self._desk, self._tokenizer, self._grammars = desk, tokenizer, grammars
        self._max_model_len = max_model_len

    async def check(self, contract: Contract) -> PublicContract:
        """Return the part that the listing shows. Raises IntakeError naming the field and the rule."""
        if self._tokenizer.chat_template is None:
            raise IntakeError(CONTRACT_NAME, "needs a base model with a chat template")
        prefix = len(self._desk.prepare(contract).prefix)
        room = self._max_model_len - contract.max_tokens - LEAST_MESSAGE
        if prefix > room:
            rule = (
                f"must be at most {max(0, room)} tokens with the chat template, they are {prefix}: max_tokens "
                f"{contract.max_tokens} and a message must fit into the context of {self._max_model_len} beside them"
            )
            raise IntakeError(f"{CONTRACT_NAME} instructions", rule)
        grammar = None if contract.output is None else await self._grammar(dict(contract.output))
        for index, example in enumerate(contract.examples):
            self._check_example(index, example.message, example.answer, contract, grammar, prefix)
        return PublicContract(
            instruction_tokens=prefix,
            max_tokens=contract.max_tokens,
            output_schema=None if contract.output is None else dict(contract.output),
            messages=contract.messages,
            system=contract.system,
            logprobs=contract.logprobs,
        )

    async def _grammar(self, schema: dict[str, object]) -> Constraint:
        try:
            return await self._grammars.compile(json_spec(schema, tight=True))
        except GrammarError as error:
            raise IntakeError(f"{CONTRACT_NAME} output.schema", f"cannot be kept by the grammar: {error}") from None

    def _check_example(
        self, index: int, message: str, answer: str, contract: Contract, grammar: Constraint | None, prefix: int
    ) -> None:
        field = f"{CONTRACT_NAME} examples[{index}]"
        asked = len(self._tokenizer.encode(message, add_special_tokens=False))
        if prefix + asked + contract.max_tokens > self._max_model_len:
            raise IntakeError(f"{field}.message", f"must fit into the context of {self._max_model_len} tokens")
        tokens = self._tokenizer.encode(answer, add_special_tokens=False)
        if len(tokens) + 1 > contract.max_tokens:  # and the token that ends it
            rule = f"must fit into max_tokens, it takes {len(tokens) + 1} of {contract.max_tokens}"
            raise IntakeError(f"{field}.answer", rule)
        if grammar is not None and not follows(grammar, tokens, self._tokenizer.eos_token_ids):
            raise IntakeError(f"{field}.answer", "must follow output.schema")


def follows(grammar: Constraint, tokens: Sequence[int], eos: frozenset[int]) -> bool:
    """Return whether these tokens are one whole text of the grammar."""
    state = grammar.begin()
    try:
        state.accept(tokens)
        forbidden = state.forbidden()
    except ConstraintFailed:
        return False
    return not bool(np.all(forbidden[sorted(eos)]))
