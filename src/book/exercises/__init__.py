"""Checks of the coding exercises: each runs the reader's function and names the mistake.

A mistake is a ``MistakeError``; if there is none, the check says that the function is correct.
"""
# ruff: noqa: F401 - what is imported here is what the module offers

from book.exercises.chapter_01 import (
    check_content_share,
    check_embed,
    check_matching_rates,
    check_sinusoids,
)
from book.exercises.chapter_02 import (
    check_alibi,
    check_half_split_shift,
    check_rotate,
    check_to_half_split,
)
from book.exercises.chapter_03 import (
    check_cross_head,
    check_fewer_biases,
    check_project,
    check_unpack,
    check_whitened,
)
from book.exercises.chapter_04 import (
    check_edge_attention,
    check_masked_weights,
    check_scaled_weights,
    check_softmax_jacobian,
)
from book.exercises.chapter_05 import (
    check_cache_bytes,
    check_from_tiled,
    check_merge_heads,
    check_shared_as_full,
    check_split_heads,
)
from book.exercises.chapter_06 import (
    check_attention_backward,
    check_layer_norm_backward,
    check_softmax_backward,
    check_sum_groups,
    check_tied_gradient,
)
from book.exercises.chapter_07 import (
    check_fold_bias,
    check_logit_variance,
    check_output_variance,
    check_packed_gain,
    check_per_head,
)
from book.exercises.chapter_08 import (
    check_post_norm_cosine,
    check_scale_branches,
    check_token_cosine,
)
from book.exercises.chapter_09 import (
    check_beam_step,
    check_causes,
    check_exact_match,
    check_shift,
    check_three_masks,
)
from book.exercises.chapter_10 import (
    check_mean_loss,
    check_positions,
    check_step,
    check_top_p,
    check_unigram_loss,
)
from book.exercises.chapter_11 import check_lookup_score, check_written
from book.exercises.chapter_12 import (
    check_repaired_distances,
    check_repaired_dropout,
    check_repaired_einsum,
    check_repaired_mask,
    check_repaired_positions,
)
from book.exercises.chapter_13 import check_longest, check_merged
from book.exercises.mistakes import MistakeError

__all__ = sorted({"MistakeError"} | {name for name in globals() if name.startswith("check_")})
