"""Modules of torch and transformers, tiny and random: none of them may raise an error."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attnbook import Encoder, LanguageModel, ModelConfig, MultiHeadAttention
from attnbook.encoder_decoder import Transformer, TransformerConfig
from tests.doctor.unusual import CONFIG, HF_MASK, D, Design, H

V = 29


def x(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape or (2, 7, D)),)


def same(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: x(*shape)() * 3


def cross() -> tuple[Any, ...]:
    return torch.randn(2, 6, D), torch.randn(2, 5, D)


def ids() -> tuple[Any, ...]:
    return (torch.randint(3, V, (2, 7)),)


def two() -> tuple[Any, ...]:
    return torch.randint(3, V, (2, 7)), torch.randint(3, V, (2, 6))


def causal_float(n: int) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(n)


# torch

LAYER = functools.partial(nn.TransformerEncoderLayer, D, H, 32, batch_first=True)
DECODER_LAYER = functools.partial(nn.TransformerDecoderLayer, D, H, 32, batch_first=True)


def stack(**more: Any) -> nn.Module:
    return nn.TransformerEncoder(LAYER(**more), 2, enable_nested_tensor=False)


def heads_of(n: int = 7) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(torch.randn(2, H, n, 8) for _ in "qkv")


def by_key_padding(name: str) -> dict[str, Any]:
    return {"mask": {"argument": name, "shape": "bk", "true": "blocked"}}


FREE, CAUSAL = {"causal": False, "n_heads": H}, {"causal": True, "n_heads": H}
TORCH: tuple[Design, ...] = (
    Design(
        "MultiheadAttention",
        lambda: nn.MultiheadAttention(D, H, batch_first=True),
        same(),
        {**FREE, "position": "none", **by_key_padding("key_padding_mask")},
    ),
    Design(
        "MultiheadAttention, causal",
        lambda: nn.MultiheadAttention(D, H, dropout=0.1, batch_first=True),
        same(),
        {**CAUSAL, "dropout": 0.1},
        {"attn_mask": causal_float(7), "is_causal": True, "need_weights": False},
    ),
    Design(
        "MultiheadAttention, tokens first", lambda: nn.MultiheadAttention(D, H), same(7, 2, D), FREE
    ),
    Design("MultiheadAttention, unbatched", lambda: nn.MultiheadAttention(D, H), same(7, D), FREE),
    Design(
        "TransformerEncoderLayer", LAYER, x(), {**FREE, **by_key_padding("src_key_padding_mask")}
    ),
    Design(
        "TransformerEncoderLayer, causal",
        lambda: LAYER(norm_first=True, activation="gelu"),
        x(),
        CAUSAL,
        {"src_mask": causal_float(7), "is_causal": True},
    ),
    Design("TransformerEncoder", stack, x(), FREE),
    Design("TransformerEncoder, causal", stack, x(), CAUSAL, {"mask": causal_float(7)}),
    Design("TransformerDecoderLayer", DECODER_LAYER, cross, {"n_heads": H}),
    Design(
        "TransformerDecoder, causal",
        lambda: nn.TransformerDecoder(DECODER_LAYER(), 2),
        cross,
        CAUSAL,
        {"tgt_mask": causal_float(6)},
    ),
    Design(
        "Transformer",
        lambda: nn.Transformer(D, H, 1, 1, 32, batch_first=True),
        lambda: cross()[::-1],
        CAUSAL,
        {"tgt_mask": causal_float(6)},
    ),
    Design("sdpa", lambda: F.scaled_dot_product_attention, heads_of(), {"causal": False}),
    Design(
        "sdpa, causal",
        lambda: F.scaled_dot_product_attention,
        heads_of(),
        {"causal": True},
        {"is_causal": True},
    ),
)

# transformers


def model(name: str, **more: Any) -> Callable[[], Any]:
    """``model("Bert:BertModel", …)``; the config's sizes follow."""

    def make() -> Any:
        import transformers

        config, kind = name.split(":")
        ids = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        made = getattr(transformers, config + "Config")(**{**ids, **more})
        return getattr(transformers, kind)(made)

    return make


SIZE: dict[str, Any] = {
    "hidden_size": D,
    "num_attention_heads": H,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
GPT_SIZE: dict[str, Any] = {"n_embd": D, "n_head": H, "n_layer": 2, "n_positions": 40}
GROUPED: dict[str, Any] = {**SIZE, "num_key_value_heads": 1}
GROUPED_8: dict[str, Any] = {**GROUPED, "head_dim": 8}
TWO_STACKS: dict[str, Any] = {
    "d_model": D,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": H,
    "decoder_attention_heads": H,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 40,
}
T5_SIZE: dict[str, Any] = {"d_model": D, "num_heads": H, "d_kv": 8, "num_layers": 1, "d_ff": 32}
DECODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GPT2:GPT2LMHeadModel": (GPT_SIZE, {"tied": True, "position": "learned"}),
    "Llama:LlamaForCausalLM": (GROUPED, {"n_kv_heads": 1, "position": "rotary"}),
    "Mistral:MistralForCausalLM": (
        {**GROUPED, "sliding_window": 3},
        {"n_kv_heads": 1, "position": "rotary", "window": 3},
    ),
    "GPTNeoX:GPTNeoXForCausalLM": (SIZE, {"position": "rotary"}),
    "Bloom:BloomForCausalLM": (
        {"hidden_size": D, "n_head": H, "n_layer": 2},
        {"position": "alibi"},
    ),
    "OPT:OPTForCausalLM": (
        {"ffn_dim": 32, "word_embed_proj_dim": D}
        | {k: v for k, v in SIZE.items() if k != "intermediate_size"},
        {},
    ),
    "Falcon:FalconForCausalLM": (
        {k: v for k, v in SIZE.items() if k != "intermediate_size"},
        {"n_kv_heads": 1},
    ),
    "Gemma:GemmaForCausalLM": (GROUPED_8, {"position": "rotary"}),
    "Gemma2:Gemma2ForCausalLM": ({**GROUPED_8, "sliding_window": 3}, {"position": "rotary"}),
    "Gemma3Text:Gemma3ForCausalLM": ({**GROUPED_8, "sliding_window": 3}, {"position": "rotary"}),
    "Qwen2:Qwen2ForCausalLM": (GROUPED, {"position": "rotary"}),
    "Qwen3:Qwen3ForCausalLM": (GROUPED_8, {"position": "rotary"}),
    "Phi:PhiForCausalLM": (SIZE, {"position": "rotary"}),
    "Phi3:Phi3ForCausalLM": (SIZE, {"position": "rotary"}),
    "GPTJ:GPTJForCausalLM": ({**GPT_SIZE, "rotary_dim": 4}, {"position": "rotary"}),
    "Mixtral:MixtralForCausalLM": ({**GROUPED, "num_local_experts": 4}, {"position": "rotary"}),
    "GptOss:GptOssForCausalLM": (
        {**GROUPED_8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3},
        {},
    ),
    "Olmo2:Olmo2ForCausalLM": (SIZE, {"position": "rotary"}),
    "Cohere:CohereForCausalLM": (GROUPED, {"position": "rotary"}),
    "Mpt:MptForCausalLM": (
        {"d_model": D, "n_heads": H, "n_layers": 2, "max_seq_len": 40},
        {"position": "alibi"},
    ),
    "XGLM:XGLMForCausalLM": (
        {
            "d_model": D,
            "ffn_dim": 32,
            "num_layers": 2,
            "attention_heads": H,
            "max_position_embeddings": 40,
        },
        {},
    ),
    "DeepseekV3:DeepseekV3ForCausalLM": (
        {
            **SIZE,
            "num_key_value_heads": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
        },
        {},
    ),
}
ENCODERS: dict[str, dict[str, Any]] = {
    "Bert:BertModel": SIZE,
    "Bert:BertForSequenceClassification": SIZE,
    "Roberta:RobertaModel": SIZE,
    "Albert:AlbertModel": {**SIZE, "embedding_size": 8},
    "Electra:ElectraModel": {**SIZE, "embedding_size": 8},
    "Deberta:DebertaModel": {**SIZE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "ModernBert:ModernBertModel": {**SIZE, "cls_token_id": 1, "sep_token_id": 2},
    "RoFormer:RoFormerModel": {**SIZE, "embedding_size": D},
}
IMAGE = {k: v for k, v in SIZE.items() if k != "max_position_embeddings"} | {
    "image_size": 8,
    "patch_size": 4,
}
WHISPER: dict[str, Any] = {
    **{k: v for k, v in TWO_STACKS.items() if k != "max_position_embeddings"},
    "max_target_positions": 40,
    "decoder_start_token_id": 1,
}
TARGET = {
    "decoder_input_ids": torch.randint(3, V, (2, 6), generator=torch.Generator().manual_seed(0))
}
TRANSFORMERS: tuple[Design, ...] = (
    *(
        Design(name, model(name, **size), ids, {**CAUSAL, "cache": True, **HF_MASK, **claims})
        for name, (size, claims) in DECODERS.items()
    ),
    *(
        Design(name, model(name, **size), ids, {**FREE, **HF_MASK})
        for name, size in ENCODERS.items()
    ),
    *(
        Design(name, model(name, decoder_start_token_id=0, **size), ids, CAUSAL | more, TARGET)
        for name, size, more in (
            ("T5:T5ForConditionalGeneration", T5_SIZE, {"scale": 1.0}),
            ("Bart:BartForConditionalGeneration", TWO_STACKS, {}),
            ("Marian:MarianMTModel", TWO_STACKS, {}),
            ("M2M100:M2M100ForConditionalGeneration", TWO_STACKS, {}),
        )
    ),
    Design(
        "Whisper:WhisperForCausalLM", model("Whisper:WhisperForCausalLM", **WHISPER), ids, CAUSAL
    ),
    Design("ViT:ViTModel", model("ViT:ViTModel", **IMAGE), x(2, 3, 8, 8), FREE),
    Design(
        "Swin:SwinModel",
        model(
            "Swin:SwinModel",
            image_size=16,
            patch_size=2,
            embed_dim=8,
            depths=[2, 2],
            num_heads=[2, 2],
            window_size=4,
        ),
        x(2, 3, 16, 16),
        {},
    ),
)

# ours


def ours(**more: Any) -> Callable[[], Any]:
    return lambda: LanguageModel(ModelConfig(**{**CONFIG, "vocab_size": V, **more}))


OURS: tuple[Design, ...] = (
    *(
        Design(
            f"LanguageModel, {position}",
            ours(position=position, tied=tied),
            ids,
            {**CAUSAL, "tied": tied, "position": position},
        )
        for position in ("learned", "sinusoidal", "rotary", "alibi", "none")
        for tied in (True, False)
    ),
    Design("MultiHeadAttention", lambda: MultiHeadAttention(D, H), x(), FREE),
    Design(
        "Encoder",
        lambda: Encoder(ModelConfig(**{**CONFIG, "vocab_size": V})),
        ids,
        {**FREE, "mask": {"argument": "mask", "shape": "b11k"}},
    ),
    Design(
        "Transformer",
        lambda: Transformer(TransformerConfig(**{**CONFIG, "vocab_size": V})),
        two,
        CAUSAL,
    ),
)
LIBRARIES = {"torch": TORCH, "transformers": TRANSFORMERS, "attnbook": OURS}
