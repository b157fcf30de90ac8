"""One case for each Triton kernel of the serving tier, interpreted: a program, as those that it takes cases from."""

from __future__ import annotations

import sys

import torch
from triton.runtime.interpreter import GridExecutor

from tests.serving.kernels import attention_cases, family_cases, grouped_cases, sample_cases, scaled_cases, triton_cases

CASES = (
    triton_cases.long_prompts_take_the_part_of_the_adapter_first_and_the_base_product_onto_it,
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
    sample_cases.a_cut_that_keeps_more_tokens_than_are_listed_draws_the_reference_s_token,
    sample_cases.counts_follow_sequences_through_changing_batches_and_too_few_slots,
    sample_cases.penalties_biases_and_grammars_change_logits_as_in_the_reference,
)
# Every kernel that the host launches: a case that no longer reaches one does not pass for it.
KERNELS = {
    "_add_biases",
    "_add_rms_norm",
    "_adjust",
    "_choose",
    "_count",
    "_draw_cut",
    "_draw_wide",
    "_gate_mul",
    "_gather",
    "_measure",
    "_scan",
    "attend_splits",
    "attend_tiles",
    "combine_splits",
    "expand_kernel",
    "grouped_product",
    "list_splits",
    "quantise_rows",
    "rotate_heads",
    "scaled_product",
    "shrink_kernel",
}


def launched_kernels() -> set[str]:
    """Return a set that is filled with the names of the kernels that are launched from now on."""
    names, launch = set[str](), GridExecutor.__call__

    def counted(self: GridExecutor, *arguments: object, **options: object) -> None:
        names.add(self.fn.__name__)
        launch(self, *arguments, **options)

    GridExecutor.__call__ = counted
    return names


if __name__ == "__main__":
    launched = launched_kernels()
    with torch.inference_mode():
        for case in CASES:
            case()
            print(f"ok {case.__name__}", flush=True)
    assert launched == KERNELS, launched ^ KERNELS
    sys.exit(0)
