"""What other libraries start with and do when nothing is said, measured.

``make implementations`` writes it to ``chapters/implementations.json``, which the chapter of this
name reads: the libraries are too heavy for the book's own environment. ``test_defaults.py``
measures all of it again.
"""

import itertools
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WRITTEN = Path(__file__).parents[1] / "chapters" / "implementations.json"
PACKAGES = ["torch", "transformers", "keras", "x-transformers"]
D_MODEL, HEADS, LAYERS, VOCAB, CONTEXT, SEEDS = 512, 8, 8, 4096, 256, 5
GLOROT = ("U, variance 2/(d + d)", math.sqrt(2 / (D_MODEL + D_MODEL)))
LINEAR = ("U(±1/sqrt(d))", (3 * D_MODEL) ** -0.5)
GPT2 = ("N(0, 0.02²)", 0.02)
Matrices = dict[str, tuple[Tensor, tuple[str, float]]]


def stay_at_home() -> None:
    """Before the libraries are imported: look at no network, write nothing into the home folder."""
    home = tempfile.mkdtemp(prefix="attnbook-defaults-")
    for name, value in {
        "KERAS_BACKEND": "torch",
        "KERAS_HOME": home,
        "HF_HOME": home,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)


def bert_model(**options: object) -> nn.Module:
    from transformers.models.bert.modeling_bert import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": D_MODEL, "num_attention_heads": HEADS, "vocab_size": VOCAB}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 4 * D_MODEL}
    return BertForMaskedLM(BertConfig(**(sizes | options)))


def gpt2_model(**options: object) -> nn.Module:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": D_MODEL, "n_head": HEADS, "n_layer": LAYERS, "vocab_size": VOCAB}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**(sizes | ends | options)))


def llama_model(**options: object) -> nn.Module:
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": D_MODEL, "num_attention_heads": HEADS, "vocab_size": VOCAB}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 4 * D_MODEL}
    return LlamaForCausalLM(LlamaConfig(**(sizes | options)))


def x_model(**options: object) -> nn.Module:
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(**({"dim": D_MODEL, "depth": 2, "heads": HEADS} | options))
    return TransformerWrapper(num_tokens=VOCAB, max_seq_len=CONTEXT, attn_layers=layers)


def keras_attention(
    width: int = D_MODEL, heads: int = HEADS, key_dim: int | None = None, **options: object
) -> nn.Module:
    import keras

    layer = keras.layers.MultiHeadAttention(heads, key_dim or width // heads, **options)
    layer.build((None, None, width), (None, None, width))
    return layer


def bert() -> Matrices:
    model = bert_model().bert
    attention = model.encoder.layer[0].attention
    return {
        "query": (attention.self.query.weight, GPT2),
        "key": (attention.self.key.weight, GPT2),
        "value": (attention.self.value.weight, GPT2),
        "output": (attention.output.dense.weight, GPT2),
        "embedding": (model.embeddings.word_embeddings.weight, GPT2),
        "positions": (model.embeddings.position_embeddings.weight, GPT2),
    }


def gpt2() -> Matrices:
    model = gpt2_model().transformer
    query, key, value = model.h[0].attn.c_attn.weight.chunk(3, 1)  # stored (in, out)
    residual = ("N(0, 0.02²/(2 layers))", 0.02 / math.sqrt(2 * LAYERS))
    return {
        "query": (query, GPT2),
        "key": (key, GPT2),
        "value": (value, GPT2),
        "output": (model.h[0].attn.c_proj.weight, residual),
        "outer": (model.h[0].mlp.c_proj.weight, residual),
        "embedding": (model.wte.weight, GPT2),
        "positions": (model.wpe.weight, GPT2),
    }


def llama() -> Matrices:
    model = llama_model().model
    attention = model.layers[0].self_attn
    return {
        "query": (attention.q_proj.weight, GPT2),
        "key": (attention.k_proj.weight, GPT2),
        "value": (attention.v_proj.weight, GPT2),
        "output": (attention.o_proj.weight, GPT2),
        "embedding": (model.embed_tokens.weight, GPT2),
    }


def keras_() -> Matrices:
    import keras

    table = keras.layers.Embedding(VOCAB, D_MODEL)
    table.build()
    kernels = [weight.value for weight in keras_attention().weights if weight.ndim == 3]
    names = ["query", "key", "value", "output"]
    made: Matrices = {name: (k, GLOROT) for name, k in zip(names, kernels, strict=True)}
    return made | {"embedding": (table.weights[0].value, ("U(±0.05)", 0.05 / math.sqrt(3)))}


def keras_wide() -> Matrices:
    """As TensorFlow's tutorial calls it: each head is as wide as the model."""
    kernels = [w.value for w in keras_attention(key_dim=D_MODEL).weights if w.ndim == 3]
    rule = ("U, variance 2/(d + 8d)", math.sqrt(2 / (D_MODEL + HEADS * D_MODEL)))
    names = ["query", "key", "value", "output"]
    return {name: (kernel, rule) for name, kernel in zip(names, kernels, strict=True)}


def x_transformers() -> Matrices:
    model = x_model()
    attention = model.attn_layers.layers[0][1]
    made: Matrices = {
        name: (getattr(attention, f"to_{short}").weight, LINEAR)
        for name, short in {"query": "q", "key": "k", "value": "v", "output": "out"}.items()
    }
    places = model.pos_emb.emb.weight * model.pos_emb.scale
    return made | {
        "embedding": (model.token_emb.emb.weight, ("N(0, 2/d)", math.sqrt(2 / D_MODEL))),
        "positions": (places, ("N(0, 1), times 1/sqrt(d)", D_MODEL**-0.5)),
    }


SYSTEMS: dict[str, tuple[str, Callable[[], Matrices]]] = {
    "Hugging Face BERT": ("transformers", bert),
    "Hugging Face GPT-2": ("transformers", gpt2),
    "Hugging Face Llama": ("transformers", llama),
    "Keras MultiHeadAttention": ("keras", keras_),
    "Keras, key_dim=512": ("keras", keras_wide),
    "x-transformers": ("x-transformers", x_transformers),
}


def sigmas() -> Iterator[dict[str, Any]]:
    """One row for each matrix, with one standard deviation for each seed."""
    for system, (package, make) in SYSTEMS.items():
        draws = []
        for seed in range(SEEDS):
            _seed(seed)
            draws.append(make())
        for name, (matrix, (rule, predicted)) in draws[0].items():
            measured = [float(f"{draw[name][0].std().item():.5g}") for draw in draws]
            yield {
                "system": system,
                "package": package,
                "matrix": name,
                "rule": rule,
                "predicted": float(f"{predicted:.6g}"),
                "entries": matrix.numel(),
                "measured": measured,
            }


def _seed(seed: int) -> None:
    import keras

    torch.manual_seed(seed)
    keras.utils.set_random_seed(seed)


@torch.no_grad()
def entering() -> dict[str, float]:
    """RMS of the vectors that enter the first block: 256 random tokens at 256 places."""
    _seed(0)
    bert, gpt2, llama, theirs = bert_model().eval(), gpt2_model().eval(), llama_model(), x_model()
    ids = torch.randint(VOCAB, (1, CONTEXT))
    blocks = {
        "Hugging Face BERT": (bert, bert.bert.encoder.layer[0]),
        "Hugging Face GPT-2": (gpt2, gpt2.transformer.h[0]),
        "Hugging Face Llama": (llama, llama.model.layers[0]),
        "x-transformers": (theirs.eval(), theirs.attn_layers),
    }
    found = {}
    for name, (model, block) in blocks.items():
        seen: list[Tensor] = []
        hook = block.register_forward_pre_hook(lambda _, given, to=seen: to.append(given[0]))
        model(ids)
        hook.remove()
        found[name] = float(f"{seen[0].pow(2).mean().sqrt().item():.3g}")
    return found


WIDTH, N_HEADS, TOKENS = 16, 4, 5
"""The sizes of the small models whose behaviour is looked at."""


def small(make: Callable[..., nn.Module], **options: object) -> nn.Module:
    """In float64, every parameter at random: zeros and ones would hide what happens."""
    _seed(0)
    sizes: dict[str, object] = {
        bert_model: {"hidden_size": WIDTH, "num_attention_heads": N_HEADS},
        gpt2_model: {"n_embd": WIDTH, "n_head": N_HEADS, "n_layer": 2},
        llama_model: {"hidden_size": WIDTH, "num_attention_heads": N_HEADS},
        x_model: {"dim": WIDTH, "heads": N_HEADS, "attn_dim_head": WIDTH // N_HEADS},
        keras_attention: {"width": WIDTH, "heads": N_HEADS, "dtype": "float64"},
    }[make]  # type: ignore[assignment]
    model = make(**sizes, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.normal_(0.0, 0.5)
    return model


def named(output: Tensor, mean: Tensor, zero: Tensor) -> str:
    """What a query that may attend to nothing got."""
    if output.isnan().all():
        return "NaN"
    if torch.allclose(output, mean, atol=1e-5):
        return "mean of all values"
    return "zeros" if torch.allclose(output, zero, atol=1e-12) else "something else"


@torch.no_grad()
def empty_rows() -> dict[str, str]:
    """A query may attend to nothing. What does it get?

    The models of Hugging Face are given a sequence with padding on the left: the first of its
    tokens, in a causal model, has nothing before it but itself, and that is padding. Of BERT's,
    all is padding.
    """
    found = {}
    kinds = {"float32": torch.float32, "float64": torch.float64}
    for way, (kind, dtype) in itertools.product(("eager", "sdpa"), kinds.items()):
        gpt2 = small(gpt2_model, attn_implementation=way).to(dtype).transformer
        attention = gpt2.h[0].attn
        x, output = first_row(gpt2, attention, [0] + [1] * (TOKENS - 1))
        mean = attention.c_proj(attention.c_attn(x)[..., -WIDTH:].mean(1))
        found[f"Hugging Face GPT-2, {way}, {kind}"] = named(output, mean, attention.c_proj.bias)
        llama = small(llama_model, attn_implementation=way).to(dtype).model
        attention = llama.layers[0].self_attn
        x, output = first_row(llama, attention, [0] + [1] * (TOKENS - 1))
        mean = attention.o_proj(attention.v_proj(x).mean(1))
        found[f"Hugging Face Llama, {way}, {kind}"] = named(output, mean, 0 * mean)
        bert = small(bert_model, attn_implementation=way).to(dtype).bert
        attention = bert.encoder.layer[0].attention.self
        x, output = first_row(bert, attention, [0] * TOKENS)
        mean = attention.value(x).mean(1)
        found[f"Hugging Face BERT, {way}, {kind}"] = named(output, mean, 0 * mean)
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    allowed[1] = False
    for label, options, call in (
        ("Keras", {}, {}),
        ("Keras, scores returned", {}, {"return_attention_scores": True}),
        ("Keras, made with dropout", {"dropout": 0.1}, {}),
    ):
        layer = small(keras_attention, **options)
        kernel, bias, out, last = (weight.value for weight in layer.weights[4:8])
        values = torch.einsum("btd,dhe->bthe", x, kernel) + bias
        mean = torch.einsum("bhe,hed->bd", values.mean(1), out) + last
        output = layer(x, x, attention_mask=allowed[None], training=False, **call)
        row = (output[0] if isinstance(output, tuple) else output)[:, 1]
        found[label] = named(row, mean, last)
    for flash in (False, True):
        attention = small(x_model, attn_flash=flash).attn_layers.layers[0][1]
        output = attention(x, attn_mask=allowed)
        mean = attention.to_out(attention.to_v(x).mean(1))
        label = "x-transformers, flash" if flash else "x-transformers"
        found[label] = named(output[:, 1], mean, 0 * mean)
    return found


def first_row(model: nn.Module, attention: nn.Module, real: list[int]) -> tuple[Tensor, Tensor]:
    """What enters an attention of a model, and what it gives the first token."""
    seen: list[Tensor] = []

    def look(
        _: nn.Module, given: tuple[Tensor, ...], options: dict[str, Tensor], result: Any
    ) -> None:
        seen[:] = (*given, options.get("hidden_states"))[0], result[0][:, 0]

    hook = attention.register_forward_hook(look, with_kwargs=True)
    model(input_ids=torch.arange(TOKENS)[None], attention_mask=torch.tensor([real]))
    hook.remove()
    return seen[0], seen[1]


@torch.no_grad()
def hears_the_future() -> dict[str, bool]:
    """An attention layer called without a mask: does the first token hear the last?"""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    x, found = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64), {}
    other = x.clone()
    other[:, -1] = torch.randn(WIDTH)
    for way in ("eager", "sdpa"):
        gpt2 = small(gpt2_model, attn_implementation=way).transformer.h[0].attn
        llama = small(llama_model, attn_implementation=way).model.layers[0].self_attn
        turned = LlamaRotaryEmbedding(llama.config)(x, torch.arange(TOKENS)[None])
        runs = {"GPT-2": gpt2, "Llama": lambda x, of=llama, at=turned: of(x, at, None)}
        for name, run in runs.items():
            same = torch.allclose(run(x)[0][:, 0], run(other)[0][:, 0])
            found[f"{name}, {way}"] = not same
    return found


@torch.no_grad()
def boolean_masks() -> dict[str, bool]:
    """GPT-2's attention given a boolean mask, True at the first key alone: is the second heard?"""
    x, found = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64), {}
    other = x.clone()
    other[:, 1] = torch.randn(WIDTH)
    mask = torch.arange(TOKENS).expand(1, 1, TOKENS, TOKENS) == 0
    for way in ("eager", "sdpa"):
        layer = small(gpt2_model, attn_implementation=way).transformer.h[0].attn
        rows = [layer(each, attention_mask=mask)[0][:, -1] for each in (x, other)]
        found[way] = not torch.allclose(*rows)
    return found


@torch.no_grad()
def groups() -> dict[str, list[int]]:
    """Four query heads, two sets of keys and values: which set does each head use?"""
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    llama = small(llama_model, num_key_value_heads=2).model.layers[0].self_attn
    theirs = small(x_model, attn_kv_heads=2).attn_layers.layers[0][1]
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    turned = LlamaRotaryEmbedding(llama.config)(x, torch.arange(TOKENS)[None])
    ways = {
        "Hugging Face Llama": (llama.v_proj, llama.o_proj, lambda: llama(x, turned, None)),
        "x-transformers": (theirs.to_v, theirs.to_out, lambda: theirs(x)),
    }
    found = {}
    for name, (value, output, run) in ways.items():
        heads: list[Tensor] = []
        hook = output.register_forward_pre_hook(lambda _, given, to=heads: to.append(given[0]))
        value.weight[: WIDTH // N_HEADS] = 0  # the first set has nothing to hand over
        run()
        hook.remove()
        silent = heads[0].unflatten(-1, (N_HEADS, -1)).abs().amax((0, 1, 3)) == 0
        found[name] = [0 if each else 1 for each in silent.tolist()]
    return found


@torch.no_grad()
def float64_error() -> dict[str, float]:
    """How far a float64 layer of Keras is from its own result with scores, beside its size."""
    layer, x = small(keras_attention), torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    exact, _ = layer(x, x, return_attention_scores=True)
    return {"Keras": float(f"{((layer(x, x) - exact).abs().max() / exact.abs().max()).item():.1g}")}


@torch.no_grad()
def true_means() -> dict[str, str]:
    """Forbid or allow one of five keys by a mask that says True there and False elsewhere."""
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    last, first = torch.zeros(2, 1, TOKENS, dtype=torch.bool)
    last[:, -1] = first[:, 0] = True

    def means(run: Callable[[Tensor], Tensor], key: int = -1, query: int = 0) -> str:
        other = x.clone()
        other[:, key] = torch.randn(WIDTH)  # not a shift, which a LayerNorm would take out
        heard = not torch.allclose(run(x)[:, query], run(other)[:, query])
        return "attend" if heard else "ignore"

    layer, theirs = small(keras_attention), small(x_model).attn_layers.layers[0][1]
    found = {
        "Keras": means(lambda x: layer(x, x, attention_mask=last[:, None])),
        "x-transformers": means(lambda x: theirs(x, context_mask=last)),
    }
    bert = small(bert_model, attn_implementation="eager").bert
    found["Hugging Face BERT"] = means(
        lambda x: bert(inputs_embeds=x, attention_mask=last.long()).last_hidden_state
    )
    gpt2, llama = small(gpt2_model).transformer, small(llama_model).model
    for name, model in {"GPT-2": gpt2, "Llama": llama}.items():  # causal: the last asks the first
        found[f"Hugging Face {name}"] = means(
            lambda x, of=model: of(inputs_embeds=x, attention_mask=first.long())[0], 0, -1
        )
    return found


@torch.no_grad()
def padded_queries() -> dict[str, str]:
    """What x-transformers gives a token that ``mask`` calls padding."""
    attention = small(x_model).attn_layers.layers[0][1]
    x, real = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64), torch.arange(TOKENS)[None] < 3
    return {
        name: "zeros" if not attention(x, **{name: real})[:, 3:].any() else "a mean"
        for name in ("mask", "context_mask")
    }


def conventions() -> dict[str, dict[str, Any]]:
    """What the modules say of themselves."""
    import keras

    gpt2, bert, llama, x = gpt2_model(), bert_model(), llama_model(), x_model()
    g, b, a = gpt2.transformer.h[0], bert.bert.encoder.layer[0], llama.model.layers[0]
    feed_forward = x.attn_layers.layers[1][1].ff
    return {
        "Hugging Face GPT-2": {
            "layout": list(g.attn.c_attn.weight.shape),
            "activation": type(g.mlp.act).__name__,
            "eps": g.ln_1.eps,
            "tied": gpt2.lm_head.weight is gpt2.transformer.wte.weight,
            "biases": g.attn.c_attn.bias is not None,
        },
        "Hugging Face BERT": {
            "layout": list(b.attention.self.query.weight.shape),
            "activation": type(b.intermediate.intermediate_act_fn).__name__,
            "eps": b.output.LayerNorm.eps,
            "tied": bert.cls.predictions.decoder.weight
            is bert.bert.embeddings.word_embeddings.weight,
            "biases": b.attention.self.query.bias is not None,
        },
        "Hugging Face Llama": {
            "layout": list(a.self_attn.q_proj.weight.shape),
            "activation": type(a.mlp.act_fn).__name__,
            "eps": llama.model.norm.variance_epsilon,
            "tied": llama.lm_head.weight is llama.model.embed_tokens.weight,
            "biases": a.self_attn.q_proj.bias is not None,
        },
        "Keras MultiHeadAttention": {
            "layout": list(keras_attention().weights[0].shape),
            "eps": keras.layers.LayerNormalization().epsilon,
            "biases": len(keras_attention().weights) == 8,
        },
        "x-transformers": {
            "layout": list(x.attn_layers.layers[0][1].to_q.weight.shape),
            "activation": type(feed_forward[0][1]).__name__,
            "tied": not isinstance(x.to_logits, nn.Linear),
            "biases": x.attn_layers.layers[0][1].to_q.bias is not None,
        },
    }


def measure() -> dict[str, Any]:
    """Everything, with torch's usual type."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        return _measure()
    finally:
        torch.set_default_dtype(usual)


def _measure() -> dict[str, Any]:
    return {
        "versions": {name: version(name).partition("+")[0] for name in PACKAGES},
        "sizes": {
            "d_model": D_MODEL,
            "heads": HEADS,
            "vocab_size": VOCAB,
            "GPT-2's layers": LAYERS,
            "seeds": SEEDS,
        },
        "sigmas": list(sigmas()),
        "entering": entering(),
        "conventions": conventions(),
        "behaviour": {
            "a row with nothing to attend to": empty_rows(),
            "without a mask hears the future": hears_the_future(),
            "GPT-2 with a boolean mask hears what it forbids": boolean_masks(),
            "key set of each of four query heads": groups(),
            "relative error of a float64 layer": float64_error(),
            "True in a mask means": true_means(),
            "x-transformers, output of a padded query": padded_queries(),
        },
    }


if __name__ == "__main__":
    from book.evidence.files import write_whole

    stay_at_home()
    torch.set_num_threads(1)
    write_whole(WRITTEN, json.dumps(measure(), ensure_ascii=False, indent=1) + "\n")
    print(f"Written: {WRITTEN}")
