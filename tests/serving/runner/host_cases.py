"""The host's side of GPU steps, with launches that do nothing: a program, as Triton comes in folders of its own."""

from __future__ import annotations

import random
import sys

import torch

from serving.core import AdapterRef, Request, SamplingParams
from serving.engine import Engine
from serving.engine.warm_up import Anything
from tests.serving.runner.host_device import Device, device
from tests.serving.runner.host_replica import VOCAB, make_engine
from tests.serving.runner.host_steps import Mix, run

SEQUENCES, ROWS, ADAPTERS = 12, 96, 3
# Of Triton's kernels beside the replay, with greedy tokens; torch's gather, logits and copies are not counted.
MOST_EAGER_LAUNCHES = 4


def _engine(here: Device) -> Engine:
    engine = make_engine(
        here, layers=2, max_rows=ROWS, max_sequences=SEQUENCES, max_len=400, adapters=ADAPTERS, blocks=300
    )
    engine.warm_up()
    return engine


def _sampling(rng: random.Random) -> SamplingParams:
    drawn = {"temperature": rng.choice((0.5, 1.0)), "seed": rng.randrange(9)}
    kinds: list[dict[str, object]] = [
        {"temperature": 0},
        {"temperature": 0, "presence_penalty": 0.5},
        {"temperature": 0, "logit_bias": ((5, 1.0), (7, -1.0))},
        {"temperature": 0, "logprobs": rng.choice((0, 3)), "prompt_logprobs": 1},
        drawn,
        drawn | {"top_k": 3},
        drawn | {"top_p": 0.9, "repetition_penalty": 1.1},
        drawn | {"min_p": 0.1, "logprobs": 1},
        drawn | {"constraint": Anything(VOCAB)},
    ]
    return SamplingParams(ignore_eos=True, **rng.choice(kinds))  # type: ignore[arg-type]


def no_kernel_is_compiled_after_the_warm_up(here: Device, engine: Engine) -> None:
    warm = len(here.variants)
    assert warm > 10
    rng = random.Random(5)
    for number in range(60):
        ref = AdapterRef(rng.choice((None, *map(str, range(ADAPTERS)))))
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.choice((1, 2, 15, 16, 17, 60, 250))))
        request = Request(f"r{number}", "", "", ref, prompt, _sampling(rng), rng.randint(1, 20))
        engine.accept(request, None)
        for _ in range(rng.randint(0, 3)):
            engine.step()
    while engine._active:
        engine.step()
    assert here.variants[warm:] == [], here.variants[warm:]
    assert engine.stats.failed == 0


def a_step_is_one_replay_and_a_few_launches_whatever_it_mixes(here: Device, engine: Engine) -> None:
    mixes = (
        Mix(decodes=12, context=20, adapters=0),
        Mix(decodes=12, context=300, adapters=3),
        Mix(decodes=8, context=20, adapters=3, prompts=1, prompt=70),
        Mix(decodes=4, context=20, adapters=0, prompts=6, prompt=9),
    )
    for mix in mixes:
        run(engine, mix, 4, here)
        assert 0 < here.launches <= MOST_EAGER_LAUNCHES * here.replays, (mix, here)


CASES = (a_step_is_one_replay_and_a_few_launches_whatever_it_mixes, no_kernel_is_compiled_after_the_warm_up)

if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode(), device() as here:
        engine = _engine(here)
        for case in CASES:
            case(here, engine)
            print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
