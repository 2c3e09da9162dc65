"""Modules of torch, transformers and this package, tiny and random: none may raise an error."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbook import Encoder, LanguageModel, ModelConfig, MultiHeadAttention, Rotary
from attnbook.doctor import Report
from attnbook.encoder_decoder import Transformer, TransformerConfig
from benchmarks.doctor.specimens.museum import Make, examine, settings

D, H, V = 16, 2, 29
FREE, CAUSAL = {"causal": False, "n_heads": H}, {"causal": True, "n_heads": H}


def report(make: Make, *, claimed: bool) -> Report:
    """The report on it, with its claims or without."""
    torch.manual_seed(0)
    return examine(make(), claimed=claimed)


def x(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape or (2, 7, D))


def same(*shape: int, times: int = 3) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (x(*shape)(),) * times


def cross() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 6, D), torch.randn(2, 5, D)


def heads_of(*tokens: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(torch.randn(2, H, n, 8) for n in tokens)


def ids(b: int = 2, t: int = 7) -> Tensor:
    return torch.randint(3, V, (b, t))


def mask(argument: str, shape: str = "bk", true: str = "blocked", **more: str) -> dict[str, Any]:
    return {"mask": {"argument": argument, "shape": shape, "true": true, **more}}


def given(**keywords: Any) -> dict[str, Any]:
    return {"keywords": keywords}


MHA = partial(nn.MultiheadAttention, D, H, batch_first=True)
LAYER = partial(nn.TransformerEncoderLayer, D, H, 32, batch_first=True)
DECODER_LAYER = partial(nn.TransformerDecoderLayer, D, H, 32, batch_first=True)
LATER = nn.Transformer.generate_square_subsequent_mask(7)


def stack(**more: Any) -> nn.Module:
    return nn.TransformerEncoder(LAYER(**more), 2, enable_nested_tensor=False)


def sdpa() -> Any:
    return F.scaled_dot_product_attention


TORCH = settings({
    "MultiheadAttention": (MHA, same(), {**FREE, "position": "none", **mask("key_padding_mask")}),
    "MultiheadAttention, causal": (
        partial(MHA, dropout=0.1), same(), {**CAUSAL, "dropout": 0.1}
        | given(attn_mask=LATER, is_causal=True, need_weights=False)),
    "MultiheadAttention, tokens first": (lambda: nn.MultiheadAttention(D, H), same(7, 2, D), FREE),
    "MultiheadAttention, unbatched": (lambda: nn.MultiheadAttention(D, H), same(7, D), FREE),
    "MultiheadAttention, added bias and zero": (
        partial(MHA, add_bias_kv=True, add_zero_attn=True), same(), {"causal": False}),
    "MultiheadAttention, other widths": (
        partial(MHA, kdim=10, vdim=12),
        lambda: (*cross()[:1], torch.randn(2, 5, 10), torch.randn(2, 5, 12)), {}),
    "TransformerEncoderLayer": (LAYER, x(), {**FREE, **mask("src_key_padding_mask")}),
    "TransformerEncoderLayer, causal": (
        partial(LAYER, norm_first=True, activation="gelu"), x(),
        CAUSAL | given(src_mask=LATER, is_causal=True)),
    "TransformerEncoder": (stack, x(), FREE),
    "TransformerEncoder, norm first": (partial(stack, norm_first=True), x(), FREE),
    "TransformerEncoder, causal": (stack, x(), CAUSAL | given(mask=LATER)),
    "TransformerDecoderLayer": (DECODER_LAYER, cross, {"n_heads": H}),
    "TransformerDecoderLayer, padded": (DECODER_LAYER, cross, mask("tgt_key_padding_mask")),
    "TransformerDecoder, causal": (lambda: nn.TransformerDecoder(DECODER_LAYER(), 2), cross,
                                   CAUSAL | given(tgt_mask=LATER[:6, :6])),
    "Transformer": (lambda: nn.Transformer(D, H, 2, 2, 32, batch_first=True),
                    lambda: cross()[::-1], {"n_heads": H}),
    "Transformer, causal": (lambda: nn.Transformer(D, H, 1, 1, 32, batch_first=True),
                            lambda: cross()[::-1], CAUSAL | given(tgt_mask=LATER[:6, :6])),
    "sdpa": (sdpa, heads_of(7, 7, 7), {"causal": False}),
    "sdpa, cross": (sdpa, heads_of(6, 5, 5), {}),
    "sdpa, causal": (sdpa, heads_of(7, 7, 7), {"causal": True} | given(is_causal=True)),
})  # fmt: skip


def model(name: str, **more: Any) -> Any:
    """``model("Bert:BertModel", …)``; the config's sizes follow."""
    import transformers

    config, kind = name.split(":")
    ids = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    made = getattr(transformers, config + "Config")(**{**ids, **more})
    return getattr(transformers, kind)(made)


LENGTH: dict[str, Any] = {"max_position_embeddings": 40}
LAYERS = {"hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 2}
NARROW: dict[str, Any] = {**LAYERS, **LENGTH}
SIZE: dict[str, Any] = {**NARROW, "intermediate_size": 32}
GPT_SIZE: dict[str, Any] = {"n_embd": D, "n_head": H, "n_layer": 2, "n_positions": 40}
GROUPED: dict[str, Any] = {**SIZE, "num_key_value_heads": 1}
GROUPED_8: dict[str, Any] = {**GROUPED, "head_dim": 8}
WINDOW = {"sliding_window": 3}
STACKS: dict[str, Any] = {"d_model": D} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 1), ("attention_heads", H), ("ffn_dim", 32))
}
ROTARY, ALIBI, ONE = {"position": "rotary"}, {"position": "alibi"}, {"n_kv_heads": 1}
DECODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GPT2:GPT2LMHeadModel": (GPT_SIZE, {"tied": True, "position": "learned"}),
    "Llama:LlamaForCausalLM": (GROUPED, ROTARY | ONE),
    "Mistral:MistralForCausalLM": (GROUPED | WINDOW, {**ROTARY, **ONE, "window": 3}),
    "GPTNeoX:GPTNeoXForCausalLM": (SIZE, ROTARY),
    "Bloom:BloomForCausalLM": ({"hidden_size": D, "n_head": H, "n_layer": 2}, ALIBI),
    "OPT:OPTForCausalLM": ({"ffn_dim": 32, "word_embed_proj_dim": D, **NARROW}, {}),
    "Falcon:FalconForCausalLM": (NARROW, ONE),
    "Gemma:GemmaForCausalLM": (GROUPED_8, ROTARY),
    "Gemma2:Gemma2ForCausalLM": (GROUPED_8 | WINDOW, ROTARY),
    "Gemma3Text:Gemma3ForCausalLM": (GROUPED_8 | WINDOW, ROTARY),
    "Qwen2:Qwen2ForCausalLM": (GROUPED, ROTARY),
    "Qwen3:Qwen3ForCausalLM": (GROUPED_8, ROTARY),
    "Phi:PhiForCausalLM": (SIZE, ROTARY),
    "Phi3:Phi3ForCausalLM": (SIZE, ROTARY),
    "GPTJ:GPTJForCausalLM": ({**GPT_SIZE, "rotary_dim": 4}, ROTARY),
    "Mixtral:MixtralForCausalLM": ({**GROUPED, "num_local_experts": 4}, ROTARY),
    "GptOss:GptOssForCausalLM": (
        {**GROUPED_8, **WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}, {}),
    "Olmo2:Olmo2ForCausalLM": (SIZE, ROTARY),
    "Cohere:CohereForCausalLM": (GROUPED, ROTARY),
    "Mpt:MptForCausalLM": ({"d_model": D, "n_heads": H, "n_layers": 2, "max_seq_len": 40}, ALIBI),
    "XGLM:XGLMForCausalLM": (
        {"d_model": D, "ffn_dim": 32, "num_layers": 2, "attention_heads": H, **LENGTH}, {}),
    "DeepseekV3:DeepseekV3ForCausalLM": (
        {**SIZE, "num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 8, "n_group": 1, "topk_group": 1, "q_lora_rank": 8,
         "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
         "first_k_dense_replace": 1}, {}),
}  # fmt: skip
ENCODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Bert:BertModel": (SIZE, {"padding_id": 0}),
    "Bert:BertForMaskedLM": (SIZE, {}),
    "Bert:BertForSequenceClassification": (SIZE, {}),
    "Roberta:RobertaModel": (SIZE, {}),
    "Albert:AlbertModel": ({**SIZE, "embedding_size": 8}, {}),
    "Electra:ElectraModel": ({**SIZE, "embedding_size": 8}, {}),
    "Deberta:DebertaModel": (
        {**SIZE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, {}),
    "ModernBert:ModernBertModel": ({**SIZE, "cls_token_id": 1, "sep_token_id": 2}, {}),
    "RoFormer:RoFormerModel": ({**SIZE, "embedding_size": D}, {}),
}  # fmt: skip
T5_SIZE = {"d_model": D, "num_heads": H, "d_kv": 8, "num_layers": 1, "d_ff": 32}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "T5:T5ForConditionalGeneration": (T5_SIZE, {"scale": 1.0}),
    "Bart:BartForConditionalGeneration": (STACKS | LENGTH, {}),
    "Marian:MarianMTModel": (STACKS | LENGTH, {}),
    "M2M100:M2M100ForConditionalGeneration": (STACKS | LENGTH, {}),
}
OTHERS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "Whisper:WhisperForCausalLM": (
        {**STACKS, "max_target_positions": 40, "decoder_start_token_id": 1}, ids, CAUSAL),
    "ViT:ViTModel": (
        {**LAYERS, "intermediate_size": 32, "image_size": 8, "patch_size": 4}, x(2, 3, 8, 8), FREE),
    "Swin:SwinModel": (
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2],
         "window_size": 4}, x(2, 3, 16, 16), {}),
}  # fmt: skip
INPUT = mask("attention_mask", true="attend", dtype="int")
TARGET = given(
    decoder_input_ids=torch.randint(3, V, (2, 6), generator=torch.Generator().manual_seed(0))
)
TRANSFORMERS = settings({
    name: (partial(model, name, **size), example, claims)
    for name, size, example, claims in (
        *((k, size, ids, {**CAUSAL, "cache": True, **INPUT, **more})
          for k, (size, more) in DECODERS.items()),
        *((k, size, ids, {**FREE, **INPUT, **more}) for k, (size, more) in ENCODERS.items()),
        *((k, {**size, "decoder_start_token_id": 0}, ids, {**CAUSAL, **more, **TARGET})
          for k, (size, more) in PAIRS.items()),
        *((k, *row) for k, row in OTHERS.items()),
    )
})  # fmt: skip

CONFIG: dict[str, Any] = {"vocab_size": V, "d_model": D, "n_heads": H, "n_layers": 2}
LLAMA = {"norm": "pre", "norm_kind": "rms", "activation": "swiglu", "position": "rotary"}


def ours(**more: Any) -> LanguageModel:
    return LanguageModel(ModelConfig(**CONFIG, **more))


OURS = settings({
    **{
        f"LanguageModel, {position}{', tied' * tied}": (
            partial(ours, position=position, tied=tied), ids,
            {**CAUSAL, "tied": tied, "position": position})
        for position in ("learned", "sinusoidal", "rotary", "alibi", "none")
        for tied in (True, False)
    },
    "LanguageModel, Llama": (partial(ours, **LLAMA, tied=False, n_kv_heads=1), ids,
                             CAUSAL | ROTARY | ONE),
    "LanguageModel, DeepNorm": (partial(ours, norm="deepnorm"), ids, CAUSAL),
    "MultiHeadAttention": (lambda: MultiHeadAttention(D, H), x(), FREE),
    "MultiHeadAttention, rotary": (lambda: MultiHeadAttention(D, H, position=Rotary()), x(),
                                   {**FREE, **ROTARY, **mask("mask", "b11k", "attend")}),
    "Encoder": (lambda: Encoder(ModelConfig(**CONFIG)), ids,
                {**FREE, **mask("mask", "b11k", "attend")}),
    "Transformer": (lambda: Transformer(TransformerConfig(**CONFIG)),
                    lambda: (ids(), ids(2, 6)), CAUSAL),
})  # fmt: skip
LIBRARIES = {"torch": TORCH, "transformers": TRANSFORMERS, "attnbook": OURS}
