"""Adapters with extras through a whole engine: loaded from their base's served weights, evicted, loaded again."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel
from transformers import LlamaForCausalLM

from tests.serving.harness import running
from tests.serving.tiny import Tiny, write_adapter

PROMPT = list(range(20, 31))


async def test_dora_answers_as_peft_does_before_and_after_an_eviction(tiny: Tiny, tmp_path: Path) -> None:
    for name, dora in (("dora", True), ("plain", False)):
        write_adapter(tmp_path / name, tiny.model, 7, r=4, lora_alpha=8, target_modules="all-linear", use_dora=dora)
    model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tiny.model), tmp_path / "dora")
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        right = model.eval().generate(input_ids=torch.tensor([PROMPT]), **settings)[0, len(PROMPT) :].tolist()
    async with running(Tiny(tiny.model, tmp_path, tiny._peft), adapter_slots=1) as run:
        adapters = run.engine.adapters
        answers = [await run.tokens(PROMPT, name, tokens=8) for name in ("dora", "plain", "dora")]
        assert answers[0] == answers[2] == right != answers[1]
        assert adapters.evictions == 2 and adapters.gauges().extra_bytes > 0
        await run.tokens(PROMPT, "plain", tokens=1)
        assert adapters.gauges().extra_bytes == 0
