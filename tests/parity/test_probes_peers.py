"""The probes read other people's models: right numbers, the same in every implementation."""

import math

import pytest
import torch
from peers import BATCH, TOKENS, randomize
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from attnbook.probes import Probe

VOCAB, D_MODEL, N_LAYERS, N_HEADS = 13, 16, 2, 4
FLOAT32 = 1e-4
"""Some of theirs computes the softmax in float32."""


def gpt2(implementation: str) -> GPT2LMHeadModel:
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"n_positions": 8, "n_embd": D_MODEL, "n_layer": N_LAYERS, "n_head": N_HEADS}
    config = GPT2Config(vocab_size=VOCAB, attn_implementation=implementation, **sizes, **tokens)
    return GPT2LMHeadModel(config)


SIZES = {"vocab_size": VOCAB, "hidden_size": D_MODEL, "num_hidden_layers": N_LAYERS}
SIZES |= {"num_attention_heads": N_HEADS, "intermediate_size": 32}


def bert(implementation: str) -> BertModel:
    return BertModel(BertConfig(**SIZES, attn_implementation=implementation))


def llama(implementation: str) -> LlamaForCausalLM:
    own = {"num_key_value_heads": 2, "attn_implementation": implementation}
    return LlamaForCausalLM(LlamaConfig(**SIZES, **own))


MODELS = {"GPT-2": gpt2, "BERT": bert, "Llama": llama}
PARTS = {"GPT-2": "attn", "BERT": "attention.self", "Llama": "self_attn"}


def make(name: str, implementation: str) -> nn.Module:
    torch.manual_seed(3)
    return randomize(MODELS[name](implementation)).eval()


def inputs(padded: bool) -> dict[str, Tensor]:
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    mask[0, -2:] = 1 - int(padded)
    ids = torch.randint(VOCAB, (BATCH, TOKENS), generator=torch.Generator().manual_seed(4))
    return {"input_ids": ids, "attention_mask": mask}


def weights_read(weights: tuple[Tensor, ...], allowed: Tensor) -> dict[str, list[float]]:
    """Entropy and largest weight of each layer, from what the model itself returns."""
    read: dict[str, list[float]] = {name: [] for name in ("entropy", "perplexity", "largest")}
    for layer in weights:
        entropies = -torch.special.xlogy(layer, layer).sum(-1)
        read["entropy"].append(entropies.mean().item())
        read["perplexity"].append(entropies.exp().mean().item())
        read["largest"].append(layer.amax(-1).mean().item())
    read["keys"] = [allowed.sum(-1).double().mean().item()] * len(weights)
    return read


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_attention_of_hugging_face(name, padded):
    given = inputs(padded)
    with Probe(model := make(name, "sdpa")) as probe:
        model(**given)
    assert probe.attention.parts == [PARTS[name]]
    assert probe.attention.layers == list(range(N_LAYERS))
    assert not probe.unread
    with torch.no_grad():
        weights = make(name, "eager")(**given, output_attentions=True).attentions
    allowed = given["attention_mask"][:, None, None] > 0
    allowed = allowed.expand(BATCH, 1, TOKENS, TOKENS)
    if name != "BERT":
        allowed = allowed.tril()
    for column, expected in weights_read(weights, allowed).items():
        assert probe.attention[column] == pytest.approx(expected, rel=FLOAT32), column


@pytest.mark.parametrize("name", MODELS)
def test_eager_attention_of_hugging_face_is_named(name):
    with Probe(model := make(name, "eager")) as probe:
        model(**inputs(padded=True))
    assert len(probe.attention) == 0
    assert len(probe.unread) == N_LAYERS
    assert all("attn_implementation='sdpa'" in reason for reason in probe.unread)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_computes_the_same(name, implementation):
    model, given = make(name, implementation).train(), inputs(padded=True)

    def run() -> list[Tensor]:
        torch.manual_seed(5)
        model.zero_grad()
        output = model(**given)[0]
        output.square().sum().backward()
        return [output, *(p.grad for p in model.parameters() if p.grad is not None)]

    expected = run()
    with Probe(model) as probe:
        got = run()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    table = probe.activations.where(part="block")
    assert table["gradient_rms"].shape == (N_LAYERS,)
    assert (table["gradient_rms"] > 0).all()
    assert (probe.parameters["update"][probe.parameters["rms"] > 0] == 0).all()


def test_sizes_of_hugging_face():
    model, given = make("GPT-2", "sdpa"), inputs(padded=False)
    states = model(**given, output_hidden_states=True).hidden_states
    with Probe(model, only=["*.h.?", "*.drop"]) as probe:
        model(**given)
    rms = [x.square().mean().sqrt().item() for x in states[:-1]]  # the last is normed
    assert probe.activations["rms"][:N_LAYERS] == pytest.approx(rms)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_attention(batch_first, need_weights):
    model = randomize(nn.MultiheadAttention(D_MODEL, N_HEADS, batch_first=batch_first))
    x = torch.randn(BATCH, TOKENS, D_MODEL)
    given = x if batch_first else x.transpose(0, 1)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[0, -2:] = True  # theirs: may not
    with Probe(model) as probe:
        model(given, given, given, key_padding_mask=padding, need_weights=need_weights)
    _, weights = model(given, given, given, key_padding_mask=padding, average_attn_weights=False)
    expected = weights_read((weights,), ~padding[:, None, None].expand(-1, 1, TOKENS, -1))
    for column, values in expected.items():
        assert probe.attention[column] == pytest.approx(values), column
    assert probe.attention["calls"].tolist() == [1]
    query, key, _ = nn.functional.linear(x, model.in_proj_weight, model.in_proj_bias).chunk(3, -1)
    query, key = (y.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for y in (query, key))
    logits = query @ key.mT / math.sqrt(D_MODEL // N_HEADS)
    pairs = logits[~padding[:, None, None].expand(logits.shape)]
    assert probe.attention["logit_variance"] == pytest.approx(pairs.var(correction=0).item())


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_torch_encoder(train, gradients):
    layer = nn.TransformerEncoderLayer(D_MODEL, N_HEADS, 32, dropout=0.0, batch_first=True)
    model = randomize(nn.TransformerEncoder(layer, N_LAYERS)).train(train)
    x = torch.randn(BATCH, TOKENS, D_MODEL)
    with torch.set_grad_enabled(gradients):
        expected = model(x)
        with Probe(model) as probe:
            got = model(x)
    fused = not train and not gradients  # torch's own path, which no hook sees
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12 if fused else 0)
    assert probe.attention["name"].tolist() == ["layers.0.self_attn", "layers.1.self_attn"]
    stream = probe.activations.where(part="block")
    assert stream["rms"][-1] == pytest.approx(expected.square().mean().sqrt().item())


def test_torch_transformer_has_two_stacks():
    model = nn.Transformer(D_MODEL, N_HEADS, 1, 1, 32, batch_first=True)
    x = torch.randn(BATCH, TOKENS, D_MODEL)
    with Probe(model) as probe:
        model(x, x[:, :3])
    names = [
        "encoder.layers.self_attn",
        "decoder.layers.self_attn",
        "decoder.layers.multihead_attn",
    ]
    assert probe.attention.parts == names
    assert probe.attention["keys"].tolist() == [TOKENS, 3, TOKENS]
