"""One case for each Triton kernel of the serving tier, under the interpreter: a program, as those that it takes from."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from tests.serving.kernels import attention_cases, family_cases, grouped_cases, sample_cases, scaled_cases, triton_cases
from tests.serving.runner import gpu_cases
from tests.serving.tiny import write_model

CASES = (
    triton_cases.norm_adds_the_residual_and_normalises_in_float32,
    triton_cases.silu_mul_takes_gate_and_up_from_one_product,
    triton_cases.rope_rotates_queries_and_fills_the_cache_and_nothing_else,
    triton_cases.bias_and_norms_come_before_the_rotation_and_values_are_not_normed,
    attention_cases.the_list_holds_each_row_s_splits_and_nothing_else,
    attention_cases.chunks_are_causal_and_leave_other_rows_alone,
    attention_cases.eight_bit_keys_and_values_are_read_with_their_scales,
    family_cases.gelu_is_its_tanh_form_and_norms_may_be_in_place,
    scaled_cases.activations_get_the_nearest_8_bit_float_of_their_own_group,
    scaled_cases.parts_of_other_sizes_than_blocks_keep_their_scales,
    grouped_cases.every_kind_gives_the_product_of_its_numbers,
    sample_cases.every_setting_draws_the_reference_s_token,
    sample_cases.a_cut_that_keeps_more_tokens_than_are_listed_draws_the_reference_s_token,
    sample_cases.counts_follow_sequences_through_changing_batches_and_too_few_slots,
    sample_cases.penalties_biases_and_grammars_change_logits_as_in_the_reference,
)
RUNNER = gpu_cases.prompts_chunks_and_tokens_in_one_step_give_the_reference_s_tokens


if __name__ == "__main__":
    import time

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for case in CASES:
            t = time.process_time()
            case()
            print(f"ok {case.__name__}", round(time.process_time() - t, 2), flush=True)
        t = time.process_time()
        write_model(Path(folder), layers=2)
        RUNNER(Path(folder))
        print(f"ok {RUNNER.__name__}", round(time.process_time() - t, 2), flush=True)
    sys.exit(0)
