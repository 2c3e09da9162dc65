"""To and from Hugging Face's models, by their kinds: modules, state dicts, folders of files."""

import importlib
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbook import files
from attnbook.attention import MultiHeadAttention
from attnbook.blocks import Block
from attnbook.config import Activation, BlockConfig
from attnbook.convert import nanogpt, shared
from attnbook.convert.shared import State
from attnbook.masks import causal_mask
from attnbook.models import Encoder, LanguageModel
from attnbook.positions import Position, Rotary, RotaryScaling, convert_rotary_weight

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Config = Mapping[str, Any]  # what stands in config.json
E = TypeVar("E", bound=Encoder)

# Theirs and our names; GPT-2's are nanoGPT's.
_LLAMA_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
_LLAMA_ATTENTION |= {"q_norm": "query_norm", "k_norm": "key_norm"}  # Qwen3's
_LLAMA_LAYER = shared.under("self_attn.", "attention.", _LLAMA_ATTENTION) | {
    "input_layernorm": "attention_residual.norm",
    "post_attention_layernorm": "feed_forward_residual.norm",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.inner",
    "mlp.down_proj": "feed_forward.outer",
}
_LLAMA = shared.under("layers.#.", "blocks.#.", _LLAMA_LAYER) | {
    "embed_tokens": "embedding",
    "norm": "final_norm",
    "lm_head": "output",
}
_BERT_ATTENTION = {f"self.{n}": n for n in ("query", "key", "value")} | {"output.dense": "output"}
_BERT_LAYER = shared.under("attention.", "attention.", _BERT_ATTENTION) | {
    "attention.output.LayerNorm": "attention_residual.norm",
    "intermediate.dense": "feed_forward.inner",
    "output.dense": "feed_forward.outer",
    "output.LayerNorm": "feed_forward_residual.norm",
}
_BERT = shared.under("bert.encoder.layer.#.", "blocks.#.", _BERT_LAYER) | {
    "bert.embeddings.word_embeddings": "embedding",
    "bert.embeddings.position_embeddings.weight": "positions.table",
    "bert.embeddings.LayerNorm": "embedding_norm",
    "cls.predictions.transform.dense": "head.dense",
    "cls.predictions.transform.LayerNorm": "head.norm",
    "cls.predictions.decoder": "output",
    "cls.predictions.decoder.bias": "output_bias",
}
_ROBERTA = {  # and BERT's
    "roberta.": "bert.",
    "lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
    "lm_head.": "cls.predictions.",
}

# Their activations and ours.
_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_GATED: dict[str, Activation] = {
    "silu": "swiglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
}


def from_gpt2(module: nn.Module) -> MultiHeadAttention | Block | LanguageModel:
    """Ours from transformers' ``GPT2Attention``, ``GPT2Block`` or ``GPT2LMHeadModel``.

    A ``GPT2Model``, which has no output layer, is read as if it used the embedding.

    ======================  ============  ====================================================
    transformers            shape         ours
    ======================  ============  ====================================================
    ``c_attn.weight``       (d, 3d)       ``query``, ``key``, ``value`` side by side, transposed
    ``c_attn.bias``         (3d,)         their biases
    ``c_proj.weight``       (d, d)        ``output``, transposed
    ``q_attn``              (d, d)        ``query`` in cross-attention; ``c_attn`` then is (d, 2d)
    ``mlp.c_fc``            (d, d_ff)     ``feed_forward.inner``, transposed
    ``mlp.c_proj``          (d_ff, d)     ``feed_forward.outer``, transposed
    ``ln_1``, ``ln_2``      (d,)          norms of ``attention_residual``, ``feed_forward_residual``
    ``wte``, ``lm_head``    (vocab, d)    ``embedding``, and ``output`` if they are not tied
    ``wpe``                 (tokens, d)   ``positions.table``
    ``ln_f``                (d,)          ``final_norm``
    ======================  ============  ====================================================

    ``Conv1D`` stores (in, out), nanoGPT's layout transposed. The dropout on an attention's output
    belongs to our residual connection.

    Source: transformers 5.23.0, ``models/gpt2/modeling_gpt2.py`` and ``pytorch_utils.py``.

    Example:
        >>> from transformers import GPT2Config, GPT2Model
        >>> theirs = GPT2Model(GPT2Config(n_embd=64, n_head=4, n_layer=1)).eval().h[0].attn
        >>> ours, x = from_gpt2(theirs), torch.randn(2, 5, 64)
        >>> torch.allclose(ours(x, causal=True), theirs(x)[0], atol=1e-5)
        True
    """
    kinds = "GPT2Attention", "GPT2Block", "GPT2Model", "GPT2LMHeadModel"
    kind = shared.kind_of(module, *kinds)
    peer: Any = module
    if kind in kinds[2:]:
        return _measured_model(peer, _gpt2(peer.config.to_dict(), _read_gpt2(peer.state_dict())))
    if kind == "GPT2Block":
        state = nanogpt.read(_transposed(peer.state_dict()), nanogpt.BLOCK)
        block = _block(state, **_gpt2_settings(peer.attn.config.to_dict()))
        shared.set_dropout(block, peer.attn.attn_dropout.p, peer.mlp.dropout.p)
        _measure_part(peer, block)
        return block.train(module.training)
    state = _transposed(peer.state_dict())
    if peer.is_cross_attention:  # (d, d) and (2d, d) to (3d, d)
        for each in ("weight", "bias"):
            parts = state.pop(f"q_attn.{each}"), state[f"c_attn.{each}"]
            state[f"c_attn.{each}"] = torch.cat(parts)
    state = nanogpt.read(state, nanogpt.ATTENTION)
    ours = shared.attention(state, peer.num_heads, dropout=peer.attn_dropout.p)
    if peer.is_cross_attention:
        tokens = shared.vectors(state["output.weight"], ours.d_model, ours.d_model)
        run = lambda x, memory: peer(x, encoder_hidden_states=memory)[0]  # noqa: E731
        shared.measure(peer, ours, run, ours, *tokens)
    else:
        _measure_part(peer, ours)
    return ours.train(module.training)


def to_gpt2(
    ours: MultiHeadAttention | Block | LanguageModel, *, cross_attention: bool = False
) -> State:
    """Parameters for the ``load_state_dict`` of transformers' module, under their names there.

    The layout is that of :func:`from_gpt2`; biases that ours does not have are zeros. What no
    parameter says belongs into the ``GPT2Config``: heads, activation, epsilon, dropout.

    Args:
        ours: the attention, block or model.
        cross_attention: for a ``GPT2Attention`` made with ``is_cross_attention=True``.

    Source: transformers 5.23.0, ``models/gpt2/modeling_gpt2.py`` and ``pytorch_utils.py``.

    Example:
        >>> to_gpt2(MultiHeadAttention(64, 4))["c_attn.weight"].shape
        torch.Size([64, 192])
    """
    if isinstance(ours, LanguageModel):
        free = ("activation", "norm_eps", "d_ff")
        state = nanogpt.written_model(ours, "GPT2LMHeadModel", *free)
    elif isinstance(ours, Block):
        shared.require_block(ours, "GPT2Block", "pre", nn.LayerNorm)
        shared.require_plain(ours.attention, "GPT2Block")
        state = shared.with_biases(ours.state_dict(), always=True)
        state = nanogpt.written(state, nanogpt.BLOCK)
    else:
        shared.require_plain(ours, "GPT2Attention")
        state = shared.with_biases(ours.state_dict(), always=True)
        state = nanogpt.written(state, nanogpt.ATTENTION)
    if cross_attention and isinstance(ours, MultiHeadAttention):
        for each in ("weight", "bias"):
            parts = state[f"c_attn.{each}"].split([ours.d_model, 2 * ours.d_model])
            state[f"q_attn.{each}"], state[f"c_attn.{each}"] = parts
    return shared.copies(_transposed(state))


def from_llama(module: nn.Module) -> MultiHeadAttention | Block | LanguageModel:
    """Ours from transformers' ``LlamaAttention``, ``LlamaDecoderLayer``, ``LlamaForCausalLM``.

    Whole models may be Gemma's, Mistral's, Qwen2's and Qwen3's, too (``MistralForCausalLM``, …).
    Gemma's norms multiply by 1 + ``weight``: ours have the sum, which bfloat16 rounds.

    ======================  ===============================  ==============================
    transformers            shape                            ours
    ======================  ===============================  ==============================
    ``q_proj``              (n_heads · d_head, d_model)      ``query``
    ``k_proj``, ``v_proj``  (n_kv_heads · d_head, d_model)   ``key``, ``value``
    ``o_proj``              (d_model, n_heads · d_head)      ``output``
    ``q_norm``, ``k_norm``  (d_head,)                        ``query_norm``, ``key_norm`` (Qwen3)
    ``gate_proj``           (d_ff, d_model)                  ``feed_forward.gate``
    ``up_proj``             (d_ff, d_model)                  ``feed_forward.inner``
    ``down_proj``           (d_model, d_ff)                  ``feed_forward.outer``
    ``input_layernorm``, …  (d_model,)                       the residuals' norms
    ``embed_tokens``        (vocab, d_model)                 ``embedding``
    ``lm_head``             (vocab, d_model)                 ``output``, if they are not tied
    ======================  ===============================  ==============================

    Rotary positions are half-split, with the base and scaling (``"linear"``, ``"llama3"`` or
    ``"yarn"``) of the module's configuration; the frequencies are compared too, which says that far
    positions agree. Theirs computes angles, softmax and norms in float32 whatever the type.

    Source: transformers 5.23.0, ``models/llama/modeling_llama.py``.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
        >>> theirs = LlamaForCausalLM(LlamaConfig(vocab_size=99, num_attention_heads=4, **sizes))
        >>> ours, ids = from_llama(theirs), torch.randint(99, (2, 5))
        >>> torch.allclose(ours(ids), theirs.eval()(ids).logits, atol=1e-5)
        True
    """
    names = ("Llama", "Gemma", "Mistral", "Qwen2", "Qwen3")
    models = {f"{name}ForCausalLM": name.lower() for name in names}
    kind = shared.kind_of(module, "LlamaAttention", "LlamaDecoderLayer", *models)
    peer: Any = module
    if kind in models:
        return _llama_model(peer, _KNOWN[models[kind]])
    part = peer if kind == "LlamaAttention" else peer.self_attn
    settings = _llama_settings(part.config.to_dict())
    rotary = _rotary(part.config.to_dict())
    ours: MultiHeadAttention | Block
    if kind == "LlamaAttention":
        ours = shared.attention(
            shared.renamed(peer.state_dict(), _LLAMA_ATTENTION, kind),
            settings["n_heads"],
            n_kv_heads=settings["n_kv_heads"],
            position=rotary,
        )
    else:
        state = shared.renamed(peer.state_dict(), _LLAMA_LAYER, kind)
        ours = _block(state, position=rotary, **settings)
    shared.set_dropout(ours, part.attention_dropout, 0.0)
    llama: Any = importlib.import_module("transformers.models.llama.modeling_llama")
    like = next(peer.parameters())
    rope = llama.LlamaRotaryEmbedding(part.config).to(like.device)
    _check_frequencies(rope, rotary)
    angles = rope(like, torch.arange(shared.TOKENS, device=like.device)[None])
    _measure_part(peer, ours, position_embeddings=angles)
    return ours.train(module.training)


def _llama_model(peer: Any, family: "_Family") -> LanguageModel:
    config = peer.config.to_dict()
    _check_options(config, family)
    model = cast(LanguageModel, family.make(config, family.read(peer.state_dict()), None))
    model = _measured_model(peer, model)
    _check_frequencies(peer.model.rotary_emb, _rotary(config))
    return model


def to_llama(ours: MultiHeadAttention | Block | LanguageModel) -> State:
    """Parameters for the ``load_state_dict`` of transformers' module, under their names there.

    The layout is that of :func:`from_llama`; interleaved rotary positions become half-split ones
    (:func:`attnbook.positions.convert_rotary_weight`). With ``qk_norm`` they are Qwen3's. What no
    parameter says belongs into the ``LlamaConfig``: heads, epsilon, ``rope_parameters``,
    ``attention_bias``, ``mlp_bias``.

    Source: transformers 5.23.0, ``models/llama/modeling_llama.py``.

    Example:
        >>> state = to_llama(MultiHeadAttention(64, 4, n_kv_heads=2, position=Rotary()))
        >>> {name: tuple(tensor.shape) for name, tensor in state.items()}
        {'q_proj.weight': (64, 64), 'k_proj.weight': (32, 64), 'v_proj.weight': (32, 64),
         'o_proj.weight': (64, 64)}
    """
    stem = "^" if isinstance(ours, MultiHeadAttention) else r"attention\."
    state = shared.with_biases(ours.state_dict(), rf"{stem}(query|key|value|output)\.")
    state = shared.with_biases(state, r"feed_forward\.")
    if isinstance(ours, LanguageModel):
        sizes = "n_kv_heads", "d_head", "d_ff"
        free = ("rotary_base", "rotary_scaling", "norm_eps", "qk_norm", *sizes)
        needed = {"position": "rotary", "scaled": False, "norm": "pre", "norm_kind": "rms"}
        shared.require_model(ours, "LlamaForCausalLM", *free, activation="swiglu", **needed)
        state.setdefault("output.weight", state["embedding.weight"])
        state = shared.copies(shared.renamed(state, shared.inverse(_LLAMA), "ours"))
        return {n if n == "lm_head.weight" else f"model.{n}": t for n, t in state.items()}
    part = ours.attention if isinstance(ours, Block) else ours
    shared.require(part, "Llama", d_value=part.d_head, d_memory=part.d_model)
    if not isinstance(part.position, Rotary) or part.position.fraction != 1:
        raise ValueError(f"Llama needs position=Rotary(), got {part.position!r}")
    if part.position.layout == "interleaved":
        state = _half_split(state, part)
    if isinstance(ours, Block):
        shared.require_block(ours, "LlamaDecoderLayer", "pre", nn.RMSNorm)
        shared.require(ours.feed_forward, "LlamaDecoderLayer", activation="swiglu")
    names = _LLAMA_LAYER if isinstance(ours, Block) else _LLAMA_ATTENTION
    return shared.copies(shared.renamed(state, shared.inverse(names), "ours"))


def _half_split(state: State, attention: MultiHeadAttention) -> State:
    """Interleaved rotary positions as half-split ones, in all rows that are turned."""
    n_heads = {"query": attention.n_heads, "key": attention.n_kv_heads}
    n_heads |= {"query_norm": 1, "key_norm": 1}  # of one head, for all
    converted = {}
    for name, tensor in state.items():
        if heads := n_heads.get(name.split(".")[-2]):
            tensor = convert_rotary_weight(tensor, heads, to="half_split")
        converted[name] = tensor
    return converted


def from_bert(module: nn.Module) -> MultiHeadAttention | Block | Encoder:
    """Ours from transformers' ``BertAttention``, ``BertLayer`` or ``BertForMaskedLM``.

    ====================================  ===========  ==========================================
    transformers                          shape        ours
    ====================================  ===========  ==========================================
    ``self.query``, ``.key``, ``.value``  (d, d)       ``query``, ``key``, ``value``
    ``output.dense``                      (d, d)       ``output``
    ``output.LayerNorm``                  (d,)         the norm of ``attention_residual``
    ``intermediate.dense``                (d_ff, d)    ``feed_forward.inner``
    ``output.dense`` (the layer's)        (d, d_ff)    ``feed_forward.outer``
    ``word_embeddings``                   (vocab, d)   ``embedding``
    ``position_embeddings``               (tokens, d)  ``positions.table``, which takes in token
                                                       type 0
    ``embeddings.LayerNorm``              (d,)         ``embedding_norm``
    ``cls.predictions.transform``         (d, d), …    ``head``
    ``cls.predictions.decoder``           (vocab, d)   ``embedding``, and ``output_bias``
    ====================================  ===========  ==========================================

    ``BertAttention`` is more than an attention: its ``output`` adds the input and norms the sum.
    Of that ``MultiHeadAttention`` has the matrix alone.

    Source: transformers 5.23.0, ``models/bert/modeling_bert.py``.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=64, num_attention_heads=4, intermediate_size=128)
        >>> theirs = BertModel(config).eval().encoder.layer[0]
        >>> ours, x = from_bert(theirs), torch.randn(2, 5, 64)
        >>> torch.allclose(ours(x), theirs(x), atol=1e-5)
        True
    """
    kind = shared.kind_of(module, "BertAttention", "BertLayer", "BertForMaskedLM")
    peer: Any = module
    state = peer.state_dict()
    if kind == "BertForMaskedLM":
        return _measured_model(peer, _bert(peer.config.to_dict(), _read_bert(state)))
    like, run, n_inputs = state["output.dense.bias"], peer, 1
    ours: MultiHeadAttention | Block
    if kind == "BertLayer":
        settings = _bert_settings(peer.attention.self.config.to_dict())
        ours = _block(shared.renamed(state, _BERT_LAYER, kind), **settings)
        shared.set_dropout(ours, peer.attention.self.dropout.p, peer.output.dropout.p)
    else:
        state = {n: t for n, t in state.items() if "LayerNorm" not in n}  # outside of ours
        state = shared.renamed(state, _BERT_ATTENTION, kind)
        ours = shared.attention(state, peer.self.num_attention_heads, dropout=peer.self.dropout.p)
        run = lambda *inputs: peer.output.dense(peer.self(*inputs)[0])  # noqa: E731
        n_inputs = 2 if peer.is_cross_attention else 1
    shared.measure(peer, ours, run, ours, *shared.vectors(like, *n_inputs * [len(like)]))
    return ours.train(module.training)


def to_bert(ours: MultiHeadAttention | Block | Encoder) -> State:
    """Parameters for the ``load_state_dict`` of transformers' module, under their names there.

    The layout is that of :func:`from_bert`; biases that ours does not have are zeros, and so are
    both token types. Of a ``MultiHeadAttention`` they are those of a ``BertAttention`` without its
    LayerNorm (load them with ``strict=False``). What no parameter says belongs into the
    ``BertConfig``: heads, activation, epsilon, dropout.

    Source: transformers 5.23.0, ``models/bert/modeling_bert.py``.

    Example:
        >>> list(to_bert(MultiHeadAttention(64, 4)))[:2]
        ['self.query.bias', 'self.key.bias']
    """
    if isinstance(ours, Encoder):
        shared.require(ours, "BertForMaskedLM", causal=False)
        free = ("activation", "norm_eps", "d_ff")
        needed = {"position": "learned", "scaled": False, "embedding_norm": True}
        shared.require_model(ours, "BertForMaskedLM", *free, **needed, prediction_head=True)
        state = shared.with_biases(ours.state_dict(), "^(blocks|embedding_norm|head)", always=True)
        state.setdefault("output.weight", state["embedding.weight"])
        types = torch.zeros_like(state["embedding.weight"][:2])
        state = shared.renamed(state, shared.inverse(_BERT), "ours")
        state["bert.embeddings.token_type_embeddings.weight"] = types
        state["cls.predictions.bias"] = state["cls.predictions.decoder.bias"]
        return shared.copies(state)
    state = shared.with_biases(ours.state_dict(), always=True)
    if isinstance(ours, Block):
        shared.require_block(ours, "BertLayer", "post", nn.LayerNorm)
        shared.require_plain(ours.attention, "BertLayer")
        return shared.copies(shared.renamed(state, shared.inverse(_BERT_LAYER), "ours"))
    shared.require_plain(ours, "BertAttention")
    return shared.copies(shared.renamed(state, shared.inverse(_BERT_ATTENTION), "ours"))


@shared.refused
def from_pretrained(folder: str | Path) -> Encoder:
    """A model from a folder of Hugging Face's; transformers need not be installed.

    The folder holds ``config.json`` and ``model.safetensors``, or several files and
    ``model.safetensors.index.json``, of GPT-2, Llama, Gemma (the first), Mistral, Qwen2 or Qwen3,
    or of BERT or RoBERTa with the head for masked words. The layouts are those of
    :func:`from_gpt2`, :func:`from_llama` and :func:`from_bert`. Its tokenizer is read by
    :func:`tokenizer`.

    RoBERTa's positions begin after the id of its padding: ours from row 0. Theirs knows padding by
    that id, ours by a ``padding_mask``. All tokens are of type 0.

    Args:
        folder: on this machine; nothing is downloaded.

    Returns:
        A ``LanguageModel``, or of BERT and RoBERTa an ``Encoder``, in evaluation mode, on the CPU,
        in the type in which it was saved.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is missing.
        ValueError: names a file that can't be read, an option in ``config.json`` that ours does not
            have, parameters that are missing or unknown, or what ``config.json`` says and the files
            do not hold: layers, widths, an output layer.

    Source: transformers 5.23.0, ``models/gpt2``, ``llama``, ``gemma``, ``mistral``, ``qwen2``,
    ``qwen3``, ``bert``, ``roberta``.

    Example:
        >>> import tempfile
        >>> from attnbook import ModelConfig
        >>> from safetensors.torch import save_file
        >>> config = ModelConfig(99, norm="pre", scaled=False, position="learned")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file(to_gpt2(LanguageModel(config)), f"{folder}/model.safetensors")
        ...     _ = Path(folder, "config.json").write_text('{"model_type": "gpt2", "n_head": 4}')
        ...     model = from_pretrained(folder)
        >>> model.config.activation
        'gelu_tanh'
    """
    folder = _existing(Path(folder))
    config = _json(folder / "config.json")
    kind = config.get("model_type")
    if kind not in _KNOWN:
        why = f", with {_MISSING[kind]}" if kind in _MISSING else ""
        raise ValueError(
            f"model_type must be one of {', '.join(_KNOWN)}, got {kind!r}{why}; the parts of a "
            "model that transformers has loaded may be read by from_bert, from_gpt2 or from_llama"
        )
    family = _KNOWN[kind]
    _check_options(config, family)
    state = family.read(_parameters(folder))
    held = _sizes(state, _required(config, family.heads))
    sizes = {key: held[name] for key, name in family.sizes.items()}
    for key, size in sizes.items():
        if (said := config.get(key)) is not None and said != size:
            raise ValueError(f"config.json has {key}={said!r}, the files hold {size!r}")
    said = config.get("tie_word_embeddings")
    tied = family.tied if said is None else said
    if tied not in held["tied"]:
        output = "an output layer of its own" if held["tied"] == [False] else "no output layer"
        raise ValueError(f"config.json has tie_word_embeddings={tied!r}, the files hold {output}")
    return family.make({**family.defaults, **sizes, **config}, state, tied)


def tokenizer(folder: str | Path) -> "Tokenizer":
    """The tokenizer in a folder of Hugging Face's, for the model of :func:`from_pretrained`.

    It is read by the package ``tokenizers``, which ``pip install -e ".[tasks]"`` installs in a
    checkout, from ``tokenizer.json``. Special tokens are added as that file says.

    Raises:
        FileNotFoundError: if there is no ``tokenizer.json``.
        ValueError: if it can't be read, or has more tokens than ``config.json`` says of the model.

    Example:
        >>> import tempfile
        >>> from attnbook.tasks import bpe_tokenizer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bpe_tokenizer("low lower lowest " * 20, 260).save(f"{folder}/tokenizer.json")
        ...     _ = Path(folder, "config.json").write_text('{"vocab_size": 260}')
        ...     words = tokenizer(folder)
        >>> words.decode(words.encode("lowest owl").ids)
        'lowest owl'
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError(
            'a tokenizer needs the package tokenizers: pip install -e ".[tasks]" in a checkout'
        ) from error
    folder = _existing(Path(folder))
    path = folder / "tokenizer.json"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}: transformers' AutoTokenizer writes it with save_pretrained"
        )
    _check_is_there(path)
    try:
        read = Tokenizer.from_file(str(path))
    except Exception as error:  # of no other class
        raise ValueError(f"{path} is not a tokenizer: {error}") from None
    read.no_truncation()
    read.no_padding()  # the file may ask for any length
    n_tokens = 1 + max(read.get_vocab().values(), default=-1)
    if n_tokens > (size := _required(_json(folder / "config.json"), "vocab_size")):
        raise ValueError(f"{path} has {n_tokens} tokens, config.json has vocab_size={size}")
    return read


# A folder.


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}: nothing is downloaded; `hf download NAME --local-dir "
            "FOLDER` gets one"
        )
    return folder


def _check_is_there(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(24) == b"version https://git-lfs.":
            raise ValueError(f"{path} is a pointer of git-lfs: run `git lfs pull` in its folder")


def _json(path: Path) -> Config:
    _check_is_there(path)
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise ValueError(f"{path} must hold options by name, got a {type(options).__name__}")
    return options


def _parameters(folder: Path) -> State:
    """The tensors of one file, or of those that an index names, and no others."""
    index, whole = folder / "model.safetensors.index.json", "model.safetensors"
    if not index.exists():
        if not (folder / whole).exists() and (folder / "pytorch_model.bin").exists():
            raise FileNotFoundError(
                f"there is no {folder / whole}; pytorch_model.bin is a pickle, which may run any "
                "code: transformers reads it, and its save_pretrained writes safetensors"
            )
        return _tensors(folder / whole)
    places = _json(index).get("weight_map")
    if not isinstance(places, dict):
        raise ValueError(f"{index} has no weight_map")
    if out := [name for name in places.values() if not re.fullmatch(r"[\w.-]+", str(name))]:
        raise ValueError(f"{index} must name files of its folder, got {out[0]!r}")
    if (folder / whole).exists() and whole not in places.values():
        raise ValueError(f"{folder} holds two saves, {whole} and {index.name}: remove one")
    state: State = {}
    for file in sorted(set(places.values())):
        tensors = _tensors(folder / file)
        named = {name for name, place in places.items() if place == file}
        if unlike := sorted(named ^ tensors.keys()):
            raise ValueError(f"{folder / file} and {index.name} differ in {shared.some(unlike)}")
        state |= tensors
    return state


def _tensors(path: Path) -> State:
    _check_is_there(path)
    return files.read(path)[0]


def _sizes(state: Mapping[str, Tensor], n_heads: int) -> dict[str, Any]:
    """What parameters under our names say, and whether the output layer may be the embedding."""
    missing = [name for name in _FIRST if name not in state]
    if missing:
        raise ValueError(f"the files hold no {' and no '.join(missing)}, under our names")
    table, query, key, inner = (state[name] for name in _FIRST)
    if (n := len(query)) % n_heads:
        raise ValueError(f"the files hold {n} rows of queries, not those of {n_heads} heads")
    output, positions = state.get("output.weight"), state.get("positions.table")
    may_tie = output is None or output.shape == table.shape
    if output is not None and may_tie:
        may_tie = torch.allclose(output, table, rtol=0, atol=0, equal_nan=True)
    return {
        "vocab_size": len(table),
        "d_model": table.shape[1],
        "n_layers": shared.n_layers(state),
        "max_tokens": None if positions is None else len(positions),
        "d_head": len(query) // n_heads,
        "n_kv_heads": len(key) * n_heads // len(query),
        "d_ff": len(inner),
        "attention_bias": "blocks.0.attention.output.bias" in state,
        "feed_forward_bias": "blocks.0.feed_forward.inner.bias" in state,
        "tied": [True] if output is None else [True, False] if may_tie else [False],
    }


_FIRST = (
    "embedding.weight",
    *(f"blocks.0.attention.{name}.weight" for name in ("query", "key")),
    "blocks.0.feed_forward.inner.weight",
)


# What a configuration says, under our names.


def _check_options(config: Config, family: "_Family") -> None:
    for key, value in {**family.needed, "quantization_config": None}.items():
        if (given := config.get(key)) is not None and given != value:
            raise ValueError(f"config.json has {key}={given!r}, ours has {value!r} only")


def _required(config: Config, key: str) -> Any:
    if (value := config.get(key)) is None:
        raise ValueError(f"the configuration has no {key}")
    if not isinstance(value, int):
        raise ValueError(f"{key} must be a whole number, got {value!r}")
    return _positive(key, value)


def _positive(key: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{key} must be a positive number, got {value!r}")
    return value


def _probability(config: Config, key: str) -> float:
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{key} must be a probability below 1, got {value!r}")
    return value


def _gpt2_settings(config: Config) -> dict[str, Any]:
    return {
        "n_heads": _required(config, "n_head"),
        "norm": "pre",
        "activation": _activation(config, "activation_function"),
        "norm_eps": _positive("layer_norm_epsilon", config["layer_norm_epsilon"]),
    }


def _llama_settings(config: Config) -> dict[str, Any]:
    heads, width = (_required(config, key) for key in ("num_attention_heads", "hidden_size"))
    of_keys, d_head = config.get("num_key_value_heads"), config.get("head_dim")
    d_head = width // heads if d_head is None else _positive("head_dim", d_head)
    return {
        "n_heads": heads,
        "n_kv_heads": heads if of_keys is None else _positive("num_key_value_heads", of_keys),
        "d_head": None if d_head * heads == width else d_head,
        "norm": "pre",
        "norm_kind": "rms",
        "activation": _activation(config, "hidden_act", _GATED),
        "norm_eps": _positive("rms_norm_eps", config["rms_norm_eps"]),
    }


def _bert_settings(config: Config) -> dict[str, Any]:
    return {
        "n_heads": _required(config, "num_attention_heads"),
        "activation": _activation(config, "hidden_act"),
        "norm_eps": _positive("layer_norm_eps", config["layer_norm_eps"]),
    }


def _activation(
    config: Config, key: str, known: Mapping[str, Activation] = _ACTIVATIONS
) -> Activation:
    name = config[key]
    if name not in known:
        raise ValueError(f"{key} must be one of {', '.join(known)}, got {name!r}")
    return known[name]


class _RopeOptions:
    """What a configuration says of rotary positions, wherever in it."""

    def __init__(self, config: Config) -> None:
        outside = "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"
        self.places = {"": {key: config.get(key) for key in outside}}
        for place in ("rope_parameters", "rope_scaling"):
            rope = config.get(place) or {}
            if not isinstance(rope, Mapping) or any(isinstance(x, Mapping) for x in rope.values()):
                raise ValueError(f"{place} must be options by name, got {rope!r}")  # of all layers
            self.places[f"{place}."] = dict(rope)
        self.kind = self.option("rope_type", "type", default="default")
        self.longest = config.get("max_position_embeddings")

    def option(self, *names: str, default: Any = None) -> Any:
        """It may stand there under several names and in several places, but not with two values."""
        given = {
            f"{place}{name}": options[name]
            for place, options in self.places.items()
            for name in names
            if options.get(name) is not None
        }
        value = next(iter(given.values()), default)
        if any(other != value for other in given.values()):
            said = " and ".join(f"{name}={value!r}" for name, value in given.items())
            raise ValueError(f"the configuration has {said}")
        return value

    def number(self, name: str, default: float | None = None) -> Any:
        """A positive number, which has to be there if there is no default."""
        if (value := self.option(name, default=default)) is None:
            raise ValueError(f"the configuration has rope_type={self.kind!r} without {name}")
        return _positive(name, value)

    def original(self) -> Any:
        """The number of tokens that the model was first trained on."""
        return self.number("original_max_position_embeddings", self.longest)


def _llama3_scaling(rope: _RopeOptions) -> RotaryScaling:
    ends = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    original = rope.original()
    return RotaryScaling(rope.number("factor"), original, *ends)


def _yarn_scaling(rope: _RopeOptions) -> RotaryScaling:
    original, factor = rope.original(), rope.number("factor")
    larger = _yarn_factor(factor, 1)
    if rope.option("mscale") and rope.option("mscale_all_dim"):
        scales = (_yarn_factor(factor, rope.number(name)) for name in ("mscale", "mscale_all_dim"))
        larger = operator.truediv(*scales)
    return RotaryScaling(
        factor,
        original,
        rope.number("beta_slow") if rope.option("beta_slow") else 1.0,
        rope.number("beta_fast") if rope.option("beta_fast") else 32.0,
        "whole pairs" if rope.option("truncate", default=True) else "pairs",
        rope.number("attention_factor", larger),
    )


_SCALINGS: dict[str, Callable[[_RopeOptions], RotaryScaling | None]] = {
    "default": lambda rope: None,
    "linear": lambda rope: RotaryScaling(rope.number("factor")),
    "llama3": _llama3_scaling,
    "yarn": _yarn_scaling,
}


def _rotary(config: Config) -> Rotary:
    rope = _RopeOptions(config)
    if rope.kind not in _SCALINGS:
        raise ValueError(f"rope_type must be one of {', '.join(_SCALINGS)}, got {rope.kind!r}")
    scaling = _SCALINGS[rope.kind](rope)
    if (part := rope.option("partial_rotary_factor", default=1.0)) != 1.0:
        raise ValueError(f"the configuration has partial_rotary_factor={part!r}, ours has 1.0 only")
    return Rotary(base=float(rope.number("rope_theta", 10000.0)), scaling=scaling)


def _yarn_factor(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


# Modules from a configuration and parameters.


def _block(state: State, *, position: Position | None = None, **settings: Any) -> Block:
    config = BlockConfig(**shared.block_settings(state), **settings)
    return shared.filled(lambda: Block(config, position=position), state)


def _read_gpt2(state: Mapping[str, Tensor]) -> State:
    return nanogpt.read(_transposed(state), nanogpt.MODEL)


def _gpt2(config: Config, state: State, tied: bool | None = None) -> LanguageModel:
    model = shared.whole_model(LanguageModel, state, tied=tied, **_gpt2_settings(config))
    parts = ("attn", "resid", "embd")
    return shared.set_dropout(model, *(_probability(config, f"{p}_pdrop") for p in parts))


def _read_llama(state: Mapping[str, Tensor]) -> State:
    state = {
        name.removeprefix("model."): tensor
        for name, tensor in shared.without_prefixes(state).items()
        if not name.endswith("rotary_emb.inv_freq")  # in old files
    }
    return shared.renamed(state, _LLAMA, "the model")


def _llama(config: Config, state: State, tied: bool | None = None, **more: Any) -> LanguageModel:
    rotary, length = _rotary(config), "max_position_embeddings"
    model = shared.whole_model(
        LanguageModel,
        state,
        tied=tied,
        max_tokens=_positive(length, config[length]),
        position="rotary",
        rotary_base=rotary.base,
        rotary_scaling=rotary.scaling,
        qk_norm="blocks.0.attention.query_norm.weight" in state,
        **_llama_settings(config),
        **more,
    )
    return shared.set_dropout(model, _probability(config, "attention_dropout"), 0.0)


def _read_gemma(state: Mapping[str, Tensor]) -> State:
    state = _read_llama(state)
    return {name: t + 1 if name.endswith("norm.weight") else t for name, t in state.items()}


def _gemma(config: Config, state: State, tied: bool | None = None) -> LanguageModel:
    if config["hidden_act"] == "gelu":  # it never meant the exact one
        config = {**config, "hidden_act": "gelu_pytorch_tanh"}
    return _llama(config, state, tied, scaled=True)


def _mistral(config: Config, state: State, tied: bool | None = None) -> LanguageModel:
    return _llama(config, state, tied, window=config["sliding_window"])


def _read_bert(state: Mapping[str, Tensor]) -> State:
    """Without what masked words do not need: the pooler, the head for pairs of sentences."""
    unneeded = re.compile(r"(^|\.)pooler\.|seq_relationship\.|\.position_ids$")
    old = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    kept = {}
    for name, tensor in shared.without_prefixes(state).items():
        for gamma, weight in old.items():
            name = name.replace(gamma, weight)
        if not unneeded.search(name):
            kept[name] = tensor
    if not any(name.startswith("cls.predictions.") for name in kept):
        raise ValueError("the model has no head for masked words, cls.predictions or lm_head")
    bias = kept.pop("cls.predictions.bias", None)  # in files it may be the decoder's, too
    if bias is not None:
        kept.setdefault("cls.predictions.decoder.bias", bias)
    kinds, table = (f"bert.embeddings.{n}_embeddings.weight" for n in ("token_type", "position"))
    for name in (kinds, table):
        if name not in kept:
            raise ValueError(f"the model has no {name}")
    kept[table] = kept[table] + kept.pop(kinds)[0]
    return shared.renamed(kept, _BERT, "the model")


def _bert(config: Config, state: State, tied: bool | None = None) -> Encoder:
    heads = {"embedding_norm": True, "prediction_head": True}
    model = shared.whole_model(Encoder, state, tied=tied, **heads, **_bert_settings(config))
    hidden = _probability(config, "hidden_dropout_prob")
    inner = _probability(config, "attention_probs_dropout_prob")
    return shared.set_dropout(model, inner, hidden, hidden)


def _read_roberta(state: Mapping[str, Tensor]) -> State:
    renamed = {}
    for name, tensor in shared.without_prefixes(state).items():
        stem = next((prefix for prefix in _ROBERTA if name.startswith(prefix)), "")
        renamed[_ROBERTA.get(stem, "") + name.removeprefix(stem)] = tensor
    return _read_bert(renamed)


def _roberta(config: Config, state: State, tied: bool | None = None) -> Encoder:
    padding = config["pad_token_id"]
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ValueError(f"pad_token_id must be a whole number of at least 0, got {padding!r}")
    rows = state["positions.table"][padding + 1 :]
    return _bert(config, {**state, "positions.table": rows}, tied)


@dataclass(frozen=True)
class _Family:
    """How the folders of one ``model_type`` are read."""

    read: Callable[[Mapping[str, Tensor]], State]
    make: Callable[[Config, State, bool | None], Encoder]
    heads: str
    sizes: Mapping[str, str]  # names in config.json, and in ``_sizes``
    needed: Mapping[str, Any]  # options of files, where nothing can be measured
    defaults: Mapping[str, Any]  # what config.json means where it says nothing
    tied: bool = False  # if config.json does not say


_LLAMA_SIZES = {
    "num_hidden_layers": "n_layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "vocab_size": "vocab_size",
}
_LLAMA_DEFAULTS = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "attention_dropout": 0.0,
}
_LLAMA_FAMILY = _Family(
    _read_llama,
    _llama,
    "num_attention_heads",
    {**_LLAMA_SIZES, "attention_bias": "attention_bias", "mlp_bias": "feed_forward_bias"},
    {"is_causal": True},
    _LLAMA_DEFAULTS,
)
_QWEN2_FAMILY = replace(
    _LLAMA_FAMILY,
    sizes=_LLAMA_SIZES,
    needed={**_LLAMA_FAMILY.needed, "use_sliding_window": False},
    defaults={**_LLAMA_DEFAULTS, "max_position_embeddings": 32768},
)
_BERT_FAMILY = _Family(
    _read_bert,
    _bert,
    "num_attention_heads",
    {
        "num_hidden_layers": "n_layers",
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_tokens",
        "vocab_size": "vocab_size",
    },
    {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    tied=True,
)
_KNOWN = {
    "gpt2": _Family(
        _read_gpt2,
        _gpt2,
        "n_head",
        {
            "n_layer": "n_layers",
            "n_embd": "d_model",
            "n_inner": "d_ff",
            "n_positions": "max_tokens",
            "vocab_size": "vocab_size",
        },
        {
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
            "is_causal": True,
        },
        {
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.1),
        },
        tied=True,
    ),
    "llama": _LLAMA_FAMILY,
    "gemma": replace(
        _LLAMA_FAMILY,
        read=_read_gemma,
        make=_gemma,
        sizes={**_LLAMA_SIZES, "attention_bias": "attention_bias"},
        needed={**_LLAMA_FAMILY.needed, "use_bidirectional_attention": False},
        defaults={
            **_LLAMA_DEFAULTS,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 8192,
        },
        tied=True,
    ),
    "bert": _BERT_FAMILY,
    "roberta": replace(  # whose head is always of GELU
        _BERT_FAMILY,
        read=_read_roberta,
        make=_roberta,
        needed={**_BERT_FAMILY.needed, "hidden_act": "gelu"},
        defaults={**_BERT_FAMILY.defaults, "pad_token_id": 1},
    ),
    "mistral": replace(
        _LLAMA_FAMILY,
        make=_mistral,
        sizes=_LLAMA_SIZES,
        defaults={
            **_LLAMA_DEFAULTS,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
    ),
    "qwen2": _QWEN2_FAMILY,
    "qwen3": replace(_QWEN2_FAMILY, sizes={**_LLAMA_SIZES, "attention_bias": "attention_bias"}),
}


_MISSING = {  # what ours has not
    "gemma2": "norms after its sublayers and soft-capped logits",
    "gemma3_text": "norms after its sublayers and two kinds of rotary positions",
    "gemma3": "images",
}


def _transposed(state: Mapping[str, Tensor]) -> State:
    """With ``Conv1D``'s matrices transposed."""
    conv = re.compile(r"\b(c_attn|q_attn|c_proj|c_fc)\.weight$")
    return {name: t.t() if conv.search(name) else t for name, t in state.items()}


def _measure_part(peer: Any, ours: MultiHeadAttention | Block, **more: Any) -> None:
    """Under a causal mask, which theirs adds to its logits."""
    like, n = next(peer.parameters()), shared.TOKENS
    ahead = ~causal_mask(n, device=like.device)
    added = like.new_zeros(1, 1, n, n).masked_fill(ahead, torch.finfo(like.dtype).min)

    def run(x: Tensor) -> Tensor:
        output = peer(x, attention_mask=added, **more)
        first: Tensor = output[0] if isinstance(output, tuple) else output
        return first

    attention = ours.attention if isinstance(ours, Block) else ours
    tokens = shared.vectors(like, attention.d_model)
    shared.measure(peer, ours, run, partial(ours, causal=True), *tokens)


def _measured_model(peer: Any, ours: E) -> E:
    config, device = ours.config, next(peer.parameters()).device
    tokens = shared.ids(config.vocab_size, config.max_tokens, device)

    def logits(x: Tensor) -> Any:
        output = peer(x)
        if hasattr(output, "logits"):
            return output.logits
        return F.linear(output.last_hidden_state, peer.get_input_embeddings().weight)

    shared.measure(peer, ours, logits, ours, tokens)
    return ours


def _check_frequencies(rope: Any, rotary: Rotary) -> None:
    """Far positions, which 16 tokens do not have, are multiples of these angles."""
    theirs, epsilon = rope.inv_freq.double().cpu(), torch.finfo(rope.inv_freq.dtype).eps
    unit = torch.cat([torch.ones_like(theirs), torch.zeros_like(theirs)])[None]
    cosine, sine = rotary.rotate(unit, torch.tensor([1])).chunk(2, dim=-1)
    apart = torch.atan2(sine, cosine) / theirs, torch.hypot(sine, cosine) / rope.attention_scaling
    off = (torch.cat(apart) - 1).abs().max().item()
    if not off <= max(1e-5, epsilon):
        raise ValueError(f"{type(rope).__name__} has other frequencies: off by {off:.2g} of theirs")
