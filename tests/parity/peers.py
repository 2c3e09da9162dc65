"""The other libraries' modules: how each is made, called and converted, in two tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.bert import modeling_bert as bert
from transformers.models.gpt2 import modeling_gpt2 as gpt2
from transformers.models.llama import modeling_llama as llama
from x_transformers.x_transformers import Attention

from attnbook import convert

D, HEADS, D_FF, MEMORY = 12, 4, 11, 10  # MEMORY: another width, where a library has one
VOCAB, CONTEXT = 17, 24
BATCH, TOKENS, KEYS = 2, 5, 7
DROPOUT = 0.3
EXACT, FLOAT32 = 1e-12, 1e-5  # the second where a library computes parts in float32


@dataclass
class Peer:
    """A module of another library, in its own words."""

    make: Callable[..., Any]
    options: dict[str, Any]
    run: Callable[..., Tensor]  # (module, allowed (batch, 1, queries, keys) or None, *inputs)
    there: Callable[..., Any]
    back: Callable[..., Any]
    drops: int = 1  # how often in training
    d_memory: int | None = None
    atol: float = EXACT

    def new(self) -> Any:
        return randomize(self.make(**self.options))


def randomize(module: nn.Module) -> nn.Module:
    """Every parameter at random: biases that are zero and norms that are one hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():  # Keras keeps a dropout's seed among them
                parameter.normal_(0.0, 0.2)
    return module


def added(allowed: Tensor | None, keys: int = TOKENS) -> Tensor:
    """0, or the lowest number where attention is forbidden."""
    zeros = torch.zeros(BATCH, 1, TOKENS, keys)
    return zeros if allowed is None else zeros.masked_fill(~allowed, torch.finfo(zeros.dtype).min)


# torch


def blocked(allowed: Tensor | None) -> Tensor | None:
    """(batch · heads, queries, keys): torch's True says who may *not* attend."""
    return None if allowed is None else ~allowed.expand(-1, HEADS, -1, -1).flatten(0, 1)


def torch_attention(**options: Any) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(D, HEADS, **({"dropout": DROPOUT, "batch_first": True} | options))


def torch_layer(*, decoder: bool = False, **options: Any) -> nn.Module:
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    settings = {"dropout": DROPOUT, "layer_norm_eps": 1e-3, "batch_first": True}
    return kind(D, HEADS, D_FF, **(settings | options))


def run_torch(m: Any, allowed: Tensor | None, x: Tensor, *memory: Tensor) -> Any:
    y = memory[0] if memory else x
    if not m.batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    output = m(x, y, y, attn_mask=blocked(allowed), need_weights=False)[0]
    return output if m.batch_first else output.transpose(0, 1)


def run_layer(m: Any, allowed: Tensor | None, x: Tensor, *memory: Tensor) -> Any:
    if not memory:
        return m(x, src_mask=blocked(allowed))
    ahead = torch.ones(TOKENS, TOKENS).triu(1).bool()
    return m(x, memory[0], tgt_mask=ahead, memory_mask=blocked(allowed))


# transformers

ENDS = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": VOCAB, "attn_implementation": "eager"}
ROPE = {"rope_type": "default", "rope_theta": 500.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 20, "rope_theta": 500.0}


def gpt2_module(kind: str, *, is_cross_attention: bool = False, **options: Any) -> Any:
    sizes = {"n_embd": D, "n_head": HEADS, "n_layer": 2, "n_positions": CONTEXT, "n_inner": D_FF}
    dropouts = {"attn_pdrop": DROPOUT, "resid_pdrop": 0.2, "embd_pdrop": 0.1}
    config = gpt2.GPT2Config(**(sizes | dropouts | ENDS | options))
    arguments = {} if kind == "GPT2LMHeadModel" else {"layer_idx": 1}
    if is_cross_attention:
        arguments["is_cross_attention"] = True
    return getattr(gpt2, kind)(config, **arguments)


def llama_module(kind: str, **options: Any) -> Any:
    sizes = {"hidden_size": 16, "num_attention_heads": HEADS, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": D_FF, "num_hidden_layers": 2, "max_position_embeddings": CONTEXT}
    settings = {"rope_parameters": dict(ROPE), "attention_dropout": DROPOUT}
    config = llama.LlamaConfig(**(sizes | settings | ENDS | options))
    return getattr(llama, kind)(config, *([] if kind == "LlamaForCausalLM" else [0]))


def bert_module(kind: str, *, is_cross_attention: bool = False, **options: Any) -> Any:
    sizes = {"hidden_size": D, "num_attention_heads": HEADS, "intermediate_size": D_FF}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": CONTEXT, "layer_norm_eps": 1e-3}
    dropouts = {"attention_probs_dropout_prob": DROPOUT, "hidden_dropout_prob": 0.2}
    config = bert.BertConfig(**(sizes | dropouts | ENDS | options))
    cross = {"is_cross_attention": True} if is_cross_attention else {}
    return getattr(bert, kind)(config, **cross)


def run_gpt2(m: Any, allowed: Tensor | None, x: Tensor, *memory: Tensor) -> Any:
    if memory:
        mask = added(allowed, KEYS)
        return m(x, encoder_hidden_states=memory[0], encoder_attention_mask=mask)[0]
    output = m(x, attention_mask=added(allowed))
    return output[0] if isinstance(output, tuple) else output


def run_llama(m: Any, allowed: Tensor | None, x: Tensor) -> Any:
    config = getattr(m, "self_attn", m).config
    angles = llama.LlamaRotaryEmbedding(config)(x, torch.arange(TOKENS)[None])
    output = m(x, position_embeddings=angles, attention_mask=added(allowed))
    return output[0] if isinstance(output, tuple) else output


def run_bert(m: Any, allowed: Tensor | None, x: Tensor, *memory: Tensor) -> Any:
    if isinstance(m, bert.BertLayer):
        return m(x, added(allowed))
    # All of BertAttention but the dropout, the sum and the norm.
    return m.output.dense(m.self(x, *memory, added(allowed, KEYS if memory else TOKENS))[0])


def run_logits(m: Any, real: Tensor | None, ids: Tensor) -> Tensor:
    return m(ids, attention_mask=None if real is None else real.long()).logits


def to_gpt2_cross(ours: Any) -> Any:
    return convert.to_gpt2(ours, cross_attention=True)


# nanoGPT can't be installed: written again from its layout


class CausalSelfAttention(nn.Module):
    """What karpathy/nanoGPT 3adf61e, model.py computes, with a mask that need not be causal."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D, bias=bias), nn.Linear(D, D, bias=bias)

    def forward(self, x: Tensor, allowed: Tensor | None = None, *, causal: bool = False) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.c_attn(x).split(D, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal)
        return self.c_proj(y.transpose(1, 2).reshape(x.shape))


class NanoGPT(nn.Module):
    """The same file's ``GPT``."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()

        def block() -> nn.ModuleDict:
            mlp = {"c_fc": nn.Linear(D, 4 * D, bias=bias), "c_proj": nn.Linear(4 * D, D, bias=bias)}
            norms = {"ln_1": nn.LayerNorm(D, bias=bias), "ln_2": nn.LayerNorm(D, bias=bias)}
            attention = {"attn": CausalSelfAttention(bias=bias)}
            return nn.ModuleDict(norms | attention | {"mlp": nn.ModuleDict(mlp)})

        tables = {"wte": nn.Embedding(VOCAB, D), "wpe": nn.Embedding(CONTEXT, D)}
        stack = {"h": nn.ModuleList(block() for _ in range(2)), "ln_f": nn.LayerNorm(D, bias=bias)}
        self.transformer = nn.ModuleDict(tables | stack)
        self.lm_head = nn.Linear(D, VOCAB, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        parts = self.transformer
        x = parts.wte(ids) + parts.wpe(torch.arange(ids.shape[1]))
        for block in parts.h:
            x = x + block.attn(block.ln_1(x), causal=True)
            x = x + block.mlp.c_proj(F.gelu(block.mlp.c_fc(block.ln_2(x))))
        return self.lm_head(parts.ln_f(x))


def from_nanogpt(module: nn.Module) -> Any:
    ours = convert.from_nanogpt(module.state_dict(), HEADS)
    return ours if isinstance(module, NanoGPT) else ours.train(module.training)


def run_nanogpt(m: Any, mask: Tensor | None, x: Tensor) -> Any:
    return m(x) if isinstance(m, NanoGPT) else m(x, mask)


# Keras and x-transformers


def keras_attention(d_memory: int = D, dtype: str = "float64", **options: Any) -> Any:
    sizes = {"num_heads": HEADS, "key_dim": 5, "value_dim": 6, "dropout": DROPOUT}
    layer = keras.layers.MultiHeadAttention(dtype=dtype, **(sizes | options))
    layer.build((None, None, D), (None, None, d_memory))
    return layer


def run_keras(m: Any, allowed: Tensor | None, x: Tensor, *memory: Tensor) -> Tensor:
    mask = None if allowed is None else allowed[:, 0]
    options = {"return_attention_scores": True, "training": m.training}  # without: in float32
    return m(x, memory[0] if memory else x, attention_mask=mask, **options)[0]


def x_attention(**options: Any) -> Attention:
    settings = {"heads": 6, "dim_head": 4, "flash": True, "dropout": DROPOUT}
    return Attention(D, **(settings | options))


def run_x(m: Any, allowed: Tensor | None, *inputs: Tensor) -> Tensor:
    return m(*inputs, attn_mask=allowed)


TORCH = convert.from_torch, convert.to_torch
BERT = run_bert, convert.from_bert, convert.to_bert
GPT2 = run_gpt2, convert.from_gpt2, convert.to_gpt2
LLAMA = run_llama, convert.from_llama, convert.to_llama
KERAS = run_keras, convert.from_keras, convert.to_keras
X = run_x, convert.from_x_transformers, convert.to_x_transformers
NANO = run_nanogpt, from_nanogpt, convert.to_nanogpt
CROSS = {"is_cross_attention": True}
PRE = {"norm_first": True, "activation": "gelu", "bias": False}
WIDTHS = {"attention_bias": True, "head_dim": 6, "rope_parameters": LLAMA3}
SDPA = {"attn_implementation": "sdpa"}
NO_BIAS = {"bias": False}

PARTS = {
    "torch attention": Peer(torch_attention, {}, run_torch, *TORCH),
    "torch attention, no bias": Peer(torch_attention, NO_BIAS, run_torch, *TORCH),
    "torch attention, turned": Peer(torch_attention, {"batch_first": False}, run_torch, *TORCH),
    "torch cross": Peer(
        torch_attention, {"kdim": MEMORY, "vdim": MEMORY}, run_torch, *TORCH, d_memory=MEMORY
    ),
    "torch encoder layer": Peer(torch_layer, {}, run_layer, *TORCH, 4),
    "torch encoder layer, pre-norm": Peer(torch_layer, PRE, run_layer, *TORCH, 4),
    "torch decoder layer": Peer(torch_layer, {"decoder": True}, run_layer, *TORCH, 6, D),
    "torch decoder layer, pre-norm": Peer(
        torch_layer, PRE | {"decoder": True}, run_layer, *TORCH, 6, D
    ),
    "BERT attention": Peer(bert_module, {"kind": "BertAttention"}, *BERT),
    "BERT cross": Peer(bert_module, {"kind": "BertAttention"} | CROSS, *BERT, d_memory=D),
    "BERT layer": Peer(bert_module, {"kind": "BertLayer"} | SDPA, *BERT, 3),
    "GPT-2 attention": Peer(gpt2_module, {"kind": "GPT2Attention", "resid_pdrop": 0.0}, *GPT2),
    "GPT-2 cross": Peer(
        gpt2_module,
        {"kind": "GPT2Attention", "resid_pdrop": 0.0} | CROSS,
        *(run_gpt2, convert.from_gpt2, to_gpt2_cross),
        d_memory=D,
    ),
    "GPT-2 block": Peer(gpt2_module, {"kind": "GPT2Block"} | SDPA, *GPT2, 3),
    "Llama attention": Peer(llama_module, {"kind": "LlamaAttention"}, *LLAMA, atol=FLOAT32),
    "Llama 3 attention": Peer(
        llama_module, {"kind": "LlamaAttention"} | WIDTHS, *LLAMA, atol=FLOAT32
    ),
    "Llama layer": Peer(llama_module, {"kind": "LlamaDecoderLayer"}, *LLAMA, atol=FLOAT32),
    "Keras attention": Peer(keras_attention, {}, *KERAS),
    "Keras cross": Peer(
        keras_attention, {"d_memory": MEMORY, "use_bias": False}, *KERAS, d_memory=MEMORY
    ),
    "x-transformers attention": Peer(x_attention, {}, *X),
    # In groups, theirs have another order, and others would drop.
    "x-transformers, grouped": Peer(x_attention, {"kv_heads": 2, "dropout": 0.0}, *X, 0),
    "x-transformers, float32": Peer(x_attention, {"flash": False}, *X, atol=FLOAT32),
    "x-transformers cross": Peer(
        x_attention,
        {"one_kv_head": True, "dim_context": MEMORY, "value_dim_head": 5},
        *X,
        d_memory=MEMORY,
    ),
    "nanoGPT attention": Peer(CausalSelfAttention, {}, *NANO, 0),
    "nanoGPT attention, no bias": Peer(CausalSelfAttention, NO_BIAS, *NANO, 0),
}

UNTIED = {"tie_word_embeddings": False, "activation_function": "relu"}
TIED = {"tie_word_embeddings": True, "head_dim": 8, "rope_parameters": LLAMA3}
LINEAR = {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 4.0}}
LINEAR |= {"attention_bias": True, "mlp_bias": True}
MODELS = {
    "GPT-2": Peer(gpt2_module, {"kind": "GPT2LMHeadModel"}, run_logits, *GPT2[1:], 7),
    "GPT-2, untied": Peer(
        gpt2_module, {"kind": "GPT2LMHeadModel"} | UNTIED, run_logits, *GPT2[1:], 7
    ),
    **{
        name: Peer(
            llama_module,
            {"kind": "LlamaForCausalLM"} | options,
            run_logits,
            *LLAMA[1:],
            2,
            atol=FLOAT32,
        )
        for name, options in {"Llama": {}, "Llama 3": TIED, "Llama, linear": LINEAR}.items()
    },
    "BERT": Peer(bert_module, {"kind": "BertForMaskedLM"}, run_logits, *BERT[1:], 7),
    "nanoGPT": Peer(NanoGPT, {}, *NANO, 0),
    "nanoGPT, no bias": Peer(NanoGPT, NO_BIAS, *NANO, 0),
}
