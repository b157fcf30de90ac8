"""Tokens chosen on the device against `serving.sampling.sample`. A program: on CUDA, or under the interpreter."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from serving.core import AdapterRef, Request, SamplingParams
from serving.core import Sequence as Running
from serving.sampling import sample
from serving.sampling.device import DeviceSampler
from tests.serving.scheduler.fakes import PlainText

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.bfloat16)
# Vocabularies: one part in part, one in full, more than one; none a power of two but 4096.
VOCABS = (300, 4096, 9001)


def running(seed: int, prompt: Iterable[int] = (), output: Iterable[int] = (), **settings: Any) -> Running:
    request = Request("r", "t", "s", AdapterRef(), tuple(prompt), SamplingParams(**settings), 100)
    return Running(request, 0.0, [*prompt, *output], PlainText(), random.Random(seed))


def choose(logits: torch.Tensor, sequences: Sequence[Running], sampler: DeviceSampler | None = None) -> list[Any]:
    """Return the device's answers for logits [rows, vocab]."""
    sampler = sampler or DeviceSampler(logits.shape[1], len(sequences), DEVICE)
    work = sampler.prepare(tuple(sequences), [len(sequence.tokens) for sequence in sequences])
    sampler.launch(work, logits.to(DEVICE))
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return work.answers()


def try_it() -> None:
    g = torch.Generator().manual_seed(1)
    for vocab in VOCABS:
        for dtype in DTYPES:
            settings = [
                dict(temperature=0),
                {},
                dict(temperature=0.6, top_p=0.9),
                dict(top_k=5),
                dict(top_k=40, top_p=0.8),
                dict(min_p=0.05),
                dict(temperature=3.0, top_p=0.99),
                dict(top_k=250, min_p=0.001),
            ]
            rows = len(settings) * 2
            logits = (torch.randn(rows, vocab, generator=g) * 3).to(dtype)
            a = [running(i, **settings[i % len(settings)]) for i in range(rows)]
            b = [running(i, **settings[i % len(settings)]) for i in range(rows)]
            found = [x.token_id for x in choose(logits, a)]
            exp = [x.token_id for x in sample(logits.float(), b)]
            print(vocab, dtype, found == exp, [i for i in range(rows) if found[i] != exp[i]], found, exp)


if __name__ == "__main__":
    try_it()
    sys.exit(0)
