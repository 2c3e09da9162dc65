"""What heads attend to, write and do: held to the outputs of the models that they are read from."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from probed import TOKENS, Run, language_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    BloomConfig,
    BloomModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from attnbook import MultiHeadAttention, token_mask
from attnbook.probes import (
    Attended,
    Probe,
    ablated,
    attended,
    contributions,
    copying_score,
    logit_lens,
    mean_cosine,
    prefix_score,
    previous_score,
)

WIDTH, HEADS, VOCAB = 16, 4, 11
EXACT, FLOAT32 = 1e-12, 1e-5  # Llama's rotations and eager softmaxes are in float32


def gpt2(implementation: str = "sdpa") -> nn.Module:
    sizes = {"n_positions": 8, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "attn_implementation": implementation}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, **sizes, **ends))


def llama(implementation: str = "sdpa") -> nn.Module:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "attention_bias": True}
    config = LlamaConfig(vocab_size=VOCAB, attn_implementation=implementation, **sizes, **heads)
    return LlamaForCausalLM(config)


def ours(position: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: language_model(n_heads=HEADS, position=position, attention_bias=True, **options)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True)
    return nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.TransformerEncoder(layer, 2))


# How each model is made, its attentions, their output layer, and how exact it is.
BLOCKS = "blocks.{}.attention", "output", EXACT
MODELS = {
    "learned": (ours("learned", norm="pre"), *BLOCKS),
    "rotary, grouped": (ours("rotary", n_kv_heads=2), *BLOCKS),
    "ALiBi, window": (ours("alibi", n_kv_heads=1, d_head=5, window=3), *BLOCKS),
    "GPT-2": (gpt2, "transformer.h.{}.attn", "c_proj", EXACT),
    "GPT-2, eager": (lambda: gpt2("eager"), "transformer.h.{}.attn", "c_proj", EXACT),
    "Llama": (llama, "model.layers.{}.self_attn", "o_proj", FLOAT32),
    "Llama, eager": (lambda: llama("eager"), "model.layers.{}.self_attn", "o_proj", FLOAT32),
    "torch": (encoder, "1.layers.{}.self_attn", "out_proj", EXACT),
}


def make(kind: str) -> tuple[nn.Module, str, str, float]:
    build, *others = MODELS[kind]
    model = build().eval()
    with torch.no_grad():  # biases that are zero hide mistakes
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model, *others


def logits(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        output = model(ids)
    return output if isinstance(output, Tensor) else output.logits


def output_of(model: nn.Module, name: str, ids: Tensor) -> Tensor:
    """What a module returns while the model runs."""
    outputs: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(
        lambda _, __, y: outputs.append(y if isinstance(y, Tensor) else y[0])
    )
    logits(model, ids)
    hook.remove()
    return outputs[0]


def draw_ids() -> Tensor:
    return torch.randint(VOCAB, (3, TOKENS))


def total(call: Attended) -> Tensor:
    return (call.weights @ call.values @ call.output).sum(1)


@pytest.mark.parametrize("kind", MODELS)
def test_heads_sum_to_what_the_attention_adds(kind):
    model, name, projection, atol = make(kind)
    ids, state = draw_ids(), {k: x.clone() for k, x in model.state_dict().items()}
    calls = attended(model, ids)
    assert [call.name for call in calls] == [name.format(0), name.format(1)]
    for call in calls:
        bias = model.get_submodule(f"{call.name}.{projection}").bias
        assert call.weights.shape == (3, HEADS, TOKENS, TOKENS)
        torch.testing.assert_close(call.weights.sum(-1), torch.ones(3, HEADS, TOKENS))
        expected = output_of(model, call.name, ids)
        torch.testing.assert_close(total(call) + bias, expected, rtol=0, atol=atol)
    assert all(x.equal(state[k]) for k, x in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("padded", [True, False])
def test_one_token_after_others(padded):
    model, name, *_, atol = make("Llama")
    ids, mask = draw_ids(), torch.ones(3, TOKENS, dtype=torch.int64)
    mask[0, :2] = 1 - padded
    (whole, *_), name = attended(model, ids, attention_mask=mask), name.format(0)
    with torch.no_grad():
        cache = model(ids[:, :-1], attention_mask=mask[:, :-1]).past_key_values
    (call, *_) = attended(model, ids[:, -1:], attention_mask=mask, past_key_values=cache)
    torch.testing.assert_close(call.weights, whole.weights[:, :, -1:], rtol=0, atol=atol)
    torch.testing.assert_close(total(call), total(whole)[:, -1:], rtol=0, atol=atol)
    cache.crop(-1)
    with ablated(model, name, 3), torch.no_grad():  # one of the four heads
        model(ids[:, -1:], attention_mask=mask, past_key_values=cache)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_torch_attention(masked, batch_first, need_weights):
    model = nn.MultiheadAttention(8, 2, batch_first=batch_first, add_bias_kv=True).eval()
    nn.init.normal_(model.out_proj.bias)
    x, memory = torch.randn(3, 4, 8), torch.randn(3, 5, 8)
    if not batch_first:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    mask = torch.rand(3, 5) < 0.3 if masked else None
    options = {"key_padding_mask": mask, "need_weights": need_weights}
    (call,) = attended(model, x, memory, memory, **options)
    expected, weights = model(x, memory, memory, average_attn_weights=False, **options)
    got = total(call) + model.out_proj.bias
    torch.testing.assert_close(got if batch_first else got.transpose(0, 1), expected)
    assert call.weights.shape == (3, 2, 4, 6)
    assert weights is None or torch.allclose(call.weights, weights)
    with ablated(model, "(model)", [0, 1]):
        output, _ = model(x, memory, memory, **options)
    assert torch.equal(output, model.out_proj.bias.expand(output.shape))


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"attn_mask": torch.tensor([[1, 1, 0, 0]]).bool()},
        {"attn_mask": torch.randn(2, 1, 4, 4), "scale": 0.3},
        {"enable_gqa": True, "dropout_p": 0.5},
    ],
)
def test_kernel(options):
    q, k, v = torch.randn(2, 4, 4, 4), torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 3)
    if "enable_gqa" not in options:
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    model = Run(lambda q, k, v: F.scaled_dot_product_attention(q, k, value=v, **options))
    (call,) = attended(model, q, k, v)
    expected = F.scaled_dot_product_attention(q, k, v, **(options | {"dropout_p": 0.0}))
    torch.testing.assert_close(call.weights @ call.values, expected)
    assert call.output is None


@pytest.mark.parametrize(
    "weigh",
    [
        lambda s: F.softmax(s, 2),
        lambda s: F.dropout(s.softmax(dim=-1).masked_fill(s < 0, 0.0), 0.5).to(s.dtype),
        lambda s: nn.Softmax(-1)(s) - 0.3 * torch.softmax(s / 2, -1),  # differential attention
    ],
)
def test_softmax_times_values(weigh, monkeypatch):
    x = torch.randn(3, 4, 5)
    (call,) = attended(Run(lambda x: weigh(x @ x.mT) @ x), x)
    monkeypatch.setattr(F, "dropout", lambda x, _: x)  # weights are those before
    torch.testing.assert_close(call.weights[:, 0], weigh(x @ x.mT))
    assert torch.equal(call.values[:, 0], x)


class Written(nn.Module):
    """An attention between projections; ``attend`` takes and gives (batch, tokens, width)."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.qkv, self.o, self.attend = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), attend

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.attend(*self.qkv(x).chunk(3, -1)))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights, and what the heads give."""
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        return (q @ k.mT).softmax(-1), (q @ k.mT).softmax(-1) @ v


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def by_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def by_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


def in_batch(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Heads after the batch, in one dimension."""

    def attend_in_batch(*qkv: Tensor) -> Tensor:
        y = attend(*(split(x).flatten(0, 1) for x in qkv))
        return y.unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2)

    return attend_in_batch


def before_batch(*qkv: Tensor) -> Tensor:
    y = by_softmax(*(torch.cat(x.chunk(HEADS, -1)) for x in qkv))
    return torch.cat(y.chunk(HEADS), -1)


def one_by_one(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attend_one_by_one(*qkv: Tensor) -> Tensor:
        by_head = zip(*(y.chunk(HEADS, -1) for y in qkv), strict=True)
        return torch.cat([attend(*x) for x in by_head], -1)

    return attend_one_by_one


def in_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of two groups of heads, in five dimensions."""
    y = by_softmax(*(split(x).unflatten(1, (2, -1)) for x in (q, k, v)))
    return y.flatten(1, 2).transpose(1, 2).flatten(2)


def heads_first(*qkv: Tensor) -> Tensor:
    y = by_softmax(*(split(x).transpose(0, 1) for x in qkv))
    return y.permute(1, 2, 0, 3).flatten(2)


@pytest.mark.parametrize(
    "attend",
    [
        in_batch(by_softmax),
        in_batch(lambda q, k, v: torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)),
        in_batch(by_kernel),
        before_batch,
        one_by_one(by_softmax),
        one_by_one(by_kernel),
        in_groups,
    ],
)
def test_heads_that_share_a_dimension(attend):
    model, x = Written(attend), torch.randn(HEADS, TOKENS, WIDTH)  # as many sequences as heads
    weights, heads = model.heads(x)
    (call,) = attended(model, x)
    torch.testing.assert_close(call.weights, weights)
    torch.testing.assert_close(total(call) + model.o.bias, model(x))
    heads = heads.index_fill(1, torch.tensor([0, 2]), 0.0)
    expected = model.o(heads.transpose(1, 2).flatten(2))
    with ablated(model, "(model)", [0, 2]):
        torch.testing.assert_close(model(x), expected)
    with (
        pytest.raises(ValueError, match=r"heads below 4, counted from 0, in '\(model\)', got \[4"),
        ablated(model, "(model)", 4),
    ):
        model(x)


def test_bloom():
    config = BloomConfig(vocab_size=VOCAB, hidden_size=WIDTH, n_layer=1, n_head=HEADS)
    model, ids, name = BloomModel(config).eval(), draw_ids(), "h.0.self_attention"
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.3)
    (call,), dense = attended(model, ids), model.get_submodule(f"{name}.dense")
    written: list[Tensor] = []
    dense.register_forward_hook(lambda _, __, y: written.append(y - dense.bias))
    model(ids)
    with ablated(model, name, 1):
        model(ids)
    by_head = call.weights @ call.values @ call.output
    for got, expected in zip(written, (by_head.sum(1), by_head[:, [0, 2, 3]].sum(1)), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=FLOAT32)


def test_a_module_for_each_head():
    class Head(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return by_softmax(*super().forward(x).chunk(3, -1))

    heads = nn.ModuleList([Head(WIDTH, 12) for _ in range(HEADS)])
    model = nn.ModuleDict({"heads": heads, "o": nn.Linear(WIDTH, WIDTH)})
    model.forward = lambda x: model["o"](torch.cat([head(x) for head in heads], -1))
    x = torch.randn(2, TOKENS, WIDTH)
    calls, bias = attended(model, x), model["o"].bias
    assert [call.name for call in calls] == [f"heads.{i}" for i in range(HEADS)]
    torch.testing.assert_close(sum(map(total, calls)) + bias, model(x))
    with ablated(model, "heads.1", 0):
        torch.testing.assert_close(sum(map(total, [calls[0], *calls[2:]])) + bias, model(x))


def test_heads_without_a_matrix():
    gated = in_batch(by_softmax)
    model, x = Written(lambda q, k, v: gated(q, k, v) * q.sigmoid()), torch.randn(2, 3, WIDTH)
    (call,) = attended(model, x)
    assert call.weights.shape == (2 * HEADS, 1, 3, 3)
    message = r"heads of '\(model\)' in a dimension of their own.*as they were"
    with pytest.raises(ValueError, match=message), ablated(model, "(model)", 0):
        model(x)
    model.num_heads = HEADS
    (call,) = attended(model, x)
    assert call.output is None
    torch.testing.assert_close(call.weights, model.heads(x)[0])


def test_heads_in_the_first_dimension():
    model, x = Written(heads_first), torch.randn(2, 3, WIDTH)
    (call,) = attended(model, x)
    torch.testing.assert_close(call.weights, model.heads(x)[0])
    message = r"got \(4, 2, 3, 4\) with 4 heads"
    with pytest.raises(ValueError, match=message), ablated(model, "(model)", 0):
        model(x)


@pytest.mark.parametrize(
    "project",
    [
        lambda y, o: F.linear(y, weight=o.weight),
        lambda y, o: torch.matmul(input=y, other=o.weight.T),
        lambda y, o: torch.mm(y.flatten(0, 1), o.weight.T).unflatten(0, y.shape[:2]),
        lambda y, o: torch.addmm(o.bias, mat1=y.flatten(0, 1), mat2=o.weight.T),
    ],
)
def test_products_with_the_output_matrix(project):
    model, x = Written(in_batch(by_softmax)), torch.randn(2, 3, WIDTH)
    model.forward = lambda x: project(model.attend(*model.qkv(x).chunk(3, -1)), model.o)
    (call,) = attended(model, x)
    assert torch.equal(call.output.flatten(0, 1), model.o.weight.T)
    with ablated(model, "(model)", range(HEADS)):
        assert torch.equal(model(x), project(torch.zeros_like(x), model.o))


def test_more_than_one_output_matrix():
    model, x = Written(in_batch(by_softmax)), torch.randn(2, 3, WIDTH)
    down, up, whole = nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH), model.o.forward
    model.o.forward = lambda y: whole(y) + up(down(F.dropout(y, 0.1, False)))  # LoRA
    (call,) = attended(model, x)
    assert call.output is None
    with ablated(model, "(model)", range(HEADS)):
        assert torch.equal(model(x), model.o(torch.zeros_like(x)))


@pytest.mark.parametrize("gate", [torch.Tensor.mul, torch.Tensor.mul_])
def test_a_gate_before_the_output_matrix(gate):
    kernel = in_batch(by_kernel)
    (call,) = attended(
        Written(lambda q, k, v: gate(kernel(q, k, v), k.sigmoid())), torch.randn(1, 3, WIDTH)
    )
    assert call.output is None


def test_attentions_that_are_not_returned_are_named():
    by_einsum = Written(lambda q, k, v: torch.einsum("bqk,bkd->bqd", (q @ k.mT).softmax(-1), v))
    model = nn.Sequential(by_einsum, Written(by_softmax), by_einsum)
    with pytest.warns(UserWarning, match=r"other attentions than those returned: 0: softmax may"):
        (call,) = attended(model, torch.randn(2, 3, WIDTH))
    assert call.name == "1"
    for attend in (
        lambda q, k, v: by_softmax(q, k, by_einsum.attend(q, k, v)),  # both in one module
        lambda q, k, v: by_softmax(q, k, (lambda s: s / s.sum(-1, True))((q @ k.mT).exp()) @ v),
    ):
        with pytest.warns(UserWarning, match=r": \(model\): (softmax|div) may be an attention"):
            attended(Written(attend), torch.randn(2, 3, WIDTH))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_attentions_under_vmap():
    attention = MultiHeadAttention(8, 2)
    model = nn.ModuleDict({"attention": attention})
    model.forward = torch.vmap(lambda x: attention(x[None])[0])
    x = torch.randn(3, 4, 8)
    with pytest.raises(ValueError, match="got attention: a product of other than plain tensors"):
        attended(model, x)
    with ablated(attention, "(model)", 1):
        expected = attention(x)
    with ablated(model, "attention", 1):
        torch.testing.assert_close(model(x), expected)
    model.forward = torch.vmap(lambda x: F.scaled_dot_product_attention(x, x, x))
    message = r"heads of '\(model\)' in a dimension of their own"
    with pytest.raises(ValueError, match=message), ablated(model, "(model)", 0):
        model(x)


@pytest.mark.parametrize(
    ("attend", "got"),
    [
        (lambda x: x.softmax(1) @ x, "Run"),  # over the queries
        (lambda x: torch.einsum("bqk,bkd->bqd", x.softmax(-1), x), r"\(model\): softmax may be"),
    ],
)
def test_what_is_not_read(attend, got):
    with pytest.raises(ValueError, match=rf"expected a model that calls F\.scaled.*, got {got}"):
        attended(Run(attend), torch.randn(2, 3, 3))


def test_contributions_are_norms_of_what_is_written():
    (call, _) = attended(make("Llama")[0], draw_ids())
    terms = torch.einsum("bhqk,bhkv,hvd->bhqkd", call.weights, call.values, call.output)
    torch.testing.assert_close(contributions(call), terms.norm(dim=-1))
    with pytest.raises(ValueError, match="expected an attention with an output matrix, got none"):
        contributions(Attended("attention", call.weights, call.values, None))


@pytest.mark.parametrize("mean", [None, "inputs", "numbers"])
@pytest.mark.parametrize("kind", MODELS)
def test_ablated_heads(kind, mean):
    model, name, projection, atol = make(kind)
    ids, others, name = draw_ids(), draw_ids()[:2], name.format(0)
    (call, *_), (other, *_) = attended(model, ids), attended(model, others)
    means = {
        None: torch.zeros(HEADS, call.values.shape[-1]),
        "inputs": (other.weights @ other.values).mean((0, 2)),
        "numbers": torch.randn(HEADS, call.values.shape[-1]),
    }[mean]
    heads = call.weights @ call.values
    heads[:, [0, 2]] = means[[0, 2], None]
    expected = (heads @ call.output).sum(1) + model.get_submodule(f"{name}.{projection}").bias
    given = {"inputs": (others,), "numbers": means}.get(mean)
    before = logits(model, ids)
    with ablated(model, name, [0, 2], mean=given):
        torch.testing.assert_close(output_of(model, name, ids), expected, rtol=0, atol=atol)
        changed = logits(model, ids)
    assert not torch.allclose(changed, before)
    assert torch.equal(logits(model, ids), before)


def test_ablations_nest_and_are_read():
    model, name, *_ = make("GPT-2")
    ids, first, second = draw_ids(), name.format(0), name.format(1)
    with ablated(model, first, range(HEADS)), ablated(model, second, 1), Probe(model) as probe:
        calls = attended(model, ids)
        output_of(model, second, ids)
        written = output_of(model, first, ids)
    assert torch.equal(written, model.get_submodule(first).c_proj.bias.expand(written.shape))
    for call in calls:  # what the heads would give, and still the matrix that multiplies
        assert torch.equal(call.output.flatten(0, 1), model.get_submodule(call.name).c_proj.weight)
    plain = attended(model, ids)
    assert torch.equal(calls[0].weights, plain[0].weights)
    assert not torch.allclose(calls[1].weights, plain[1].weights)
    assert probe.attention["calls"].tolist() == [3, 3]


def test_ablated_passes_gradients_of_the_other_heads():
    model, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    with ablated(model, "(model)", 1):
        model(x).sum().backward()
    by_head = model.value.weight.grad.unflatten(0, (2, 4))
    assert by_head[0].any()
    assert not by_head[1].any()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("backward", ["tensor", "torch", "grad"])
def test_ablated_with_activation_checkpointing(backward, reentrant):
    attention, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8, requires_grad=True)
    model = nn.ModuleDict({"attention": attention})

    def gradient() -> Tensor:
        loss = model(x).square().sum()
        if backward == "grad" and not reentrant:  # torch refuses the other one
            return torch.autograd.grad(loss, attention.value.weight)[0]
        attention.zero_grad()
        loss.backward() if backward == "tensor" else torch.autograd.backward(loss)
        return attention.value.weight.grad

    model.forward = lambda x: attention(x)
    with ablated(model, "attention", 1):
        expected = gradient()
    model.forward = lambda x: checkpoint(attention, x, use_reentrant=reentrant)
    with ablated(model, "attention", 1), Probe(model) as probe:
        torch.testing.assert_close(gradient(), expected)
    assert probe.attention["calls"].tolist() == [1]


@pytest.mark.parametrize(
    "heads", [torch.tensor(1), torch.tensor([1]), [torch.tensor(1)], np.int64(1), np.array([1])]
)
def test_indices_of_heads(heads):
    model, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    with ablated(model, "(model)", 1):
        expected = model(x)
    with ablated(model, "(model)", heads):
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize("heads", [torch.tensor([True, False]), True, [0.5]])
def test_what_is_no_index(heads, without_shape_checks):
    message, model = "expected heads as integers, counted from 0, got", MultiHeadAttention(8, 2)
    with pytest.raises(ValueError, match=message), ablated(model, "(model)", heads):
        pass


@pytest.mark.parametrize(
    ("name", "heads", "mean", "message"),
    [
        ("blocks.0.attn", 0, None, r"expected the name of an attention, .*, got 'blocks.0"),
        ("blocks.0", 0, None, r"to run in 'blocks\.0', got attentions in blocks\.0\.attention, bl"),
        (
            "blocks.0.attention",
            4,
            None,
            r"expected heads below 4, .*, got \[4\]",
        ),
        (
            "blocks.0.attention",
            -1,
            None,
            r"expected heads below 4, .*, got \[-1\]",
        ),
        ("blocks.0.attention", 0, torch.zeros(4), r"mean of shape \(4, 4\), .*shape \(4,\)$"),
    ],
)
def test_what_cannot_be_ablated(name, heads, mean, message, without_shape_checks):
    model, ids = make("learned")[0], draw_ids()
    with pytest.raises(ValueError, match=message), ablated(model, name, heads, mean=mean):
        model(ids)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_previous_score():
    weights = torch.rand(2, 3, 5, 5)
    by_hand = [weights[b, :, i, i - 1] for b in range(2) for i in range(1, 5)]
    torch.testing.assert_close(previous_score(weights), torch.stack(by_hand).mean(0))
    last = previous_score(weights[:, :, 3:])  # decoded with a cache
    torch.testing.assert_close(last, torch.stack([*by_hand[2:4], *by_hand[6:]]).mean(0))
    with pytest.raises(ValueError, match=r"expected two keys or more, .* got 1 for 1 queries"):
        previous_score(torch.ones(1, 1, 1, 1))


def test_prefix_score():
    ids = torch.tensor([[1, 2, 1, 1, 3], [4, 5, 6, 7, 8]])  # nothing again in the second
    weights = torch.rand(2, 3, 5, 5).tril()
    by_hand = weights[0, :, 2, 1], weights[0, :, 3, 1] + weights[0, :, 3, 3]
    torch.testing.assert_close(prefix_score(weights, ids), sum(by_hand) / 2)
    with pytest.raises(ValueError, match=r"a token occurs again, got \[\[4, 5"):
        prefix_score(weights[1:], ids[1:])


@pytest.mark.parametrize("left", [True, False])
def test_scores_without_padding(left):
    ids, real = torch.tensor([[1, 2, 1, 3, 2]]), slice(3, 8) if left else slice(0, 5)
    padded = torch.zeros(1, 8, dtype=torch.int64)
    padded[:, real] = ids
    weights, mask = torch.rand(1, 3, 8, 8), token_mask(padded, 0)
    alone = weights[:, :, real, real]
    torch.testing.assert_close(previous_score(weights, mask=mask), previous_score(alone))
    torch.testing.assert_close(prefix_score(weights, padded, mask=mask), prefix_score(alone, ids))
    last = previous_score(weights[:, :, 4:], mask=mask)  # decoded with a cache
    torch.testing.assert_close(last, previous_score(alone[:, :, 1:] if left else alone[:, :, 4:]))
    with pytest.raises(ValueError, match="two neighbours that are not padding, got none"):
        previous_score(weights, mask=torch.zeros_like(mask))


def test_prefix_score_of_other_tokens(without_shape_checks):
    with pytest.raises(ValueError, match=r"for ids of shape \(1, 3\), got \(2, 1, 3, 3\)"):
        prefix_score(torch.rand(2, 1, 3, 3), torch.ones(1, 3, dtype=torch.int64))


def test_copying_score_is_that_of_the_large_matrix():
    embedding, ov, unembedding = torch.randn(7, 4), torch.randn(4, 4), torch.randn(4, 7)
    large = torch.linalg.eigvals(embedding @ ov @ unembedding)
    expected = large.sum().real / large.abs().sum()
    assert copying_score(embedding, ov, unembedding) == pytest.approx(expected.item())
    assert copying_score(embedding, torch.eye(4), embedding.mT) == pytest.approx(1)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "torch"])
def test_logit_lens(kind):
    model, ids = make(kind)[0], draw_ids()
    lens = logit_lens(model, ids)
    assert lens.shape == (2, 3, TOKENS, VOCAB)
    assert torch.equal(lens[1], logits(model, ids))
    assert not torch.allclose(lens[0], lens[1])


def test_logit_lens_of_ones_own():
    blocks = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4)})
    model = nn.Sequential(nn.Embedding(5, 4), *blocks.values(), nn.LayerNorm(4), nn.Linear(4, 5))
    ids = torch.tensor([[1, 2]])
    layers = ["0", blocks["second"]]
    expected = model[3:](torch.stack([model[0](ids), model[:3](ids)]))
    got = logit_lens(model, ids, layers=layers, norm="3", unembedding=lambda x: model[4](x))
    torch.testing.assert_close(got, expected)
    with pytest.raises(ValueError, match=r"expected layers, norm and unembedding, .* a Sequential"):
        logit_lens(model, ids, layers=layers, norm="3")


def test_logit_lens_of_logits_that_are_changed():
    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 4}
    config = Gemma2Config(vocab_size=VOCAB, final_logit_softcapping=3.0, **sizes, **heads)
    model, ids = Gemma2ForCausalLM(config).eval(), draw_ids()
    nn.init.normal_(model.lm_head.weight)
    with pytest.raises(ValueError, match="got others from Gemma2ForCausalLM: give an unembedding"):
        logit_lens(model, ids, layers=["model.layers.0"])
    lens = logit_lens(model, ids, unembedding=lambda x: 3 * (model.lm_head(x) / 3).tanh())
    torch.testing.assert_close(lens[1], logits(model, ids), rtol=0, atol=FLOAT32)


def test_layers_are_names(without_shape_checks):
    with pytest.raises(TypeError, match=r"modules or their names as layers, got \[0\]"):
        logit_lens(language_model(), draw_ids(), layers=[0])


@pytest.mark.parametrize("centred", [True, False])
def test_mean_cosine(centred):
    x = torch.randn(2, 3, 5, 4) + 1
    rows = x - x.mean(-2, keepdim=True) if centred else x
    cosines = F.cosine_similarity(rows[..., :, None, :], rows[..., None, :, :], dim=-1)
    expected = cosines[..., ~torch.eye(5, dtype=torch.bool)].mean()
    assert mean_cosine(x, centred=centred) == pytest.approx(expected.item())


def test_mean_cosine_needs_two_rows():
    with pytest.raises(ValueError, match="expected two rows or more, got 1"):
        mean_cosine(torch.ones(3, 1, 4))


def test_attention_is_drawn_a_picture_a_head():
    weights = torch.rand(2, 3, 2, 4)
    axes = Attended("a", weights, torch.ones(2, 3, 4, 5), None).plot(list("abcd"), sequence=1)
    assert [ax.get_title() for ax in axes] == ["head 0", "head 1", "head 2"]
    assert torch.tensor(axes[2].get_images()[0].get_array()).allclose(weights[1, 2].float())
    assert [label.get_text() for label in axes[0].get_xticklabels()] == list("abcd")
    assert [label.get_text() for label in axes[0].get_yticklabels()] == list("cd")


def test_many_heads_of_many_words_fit_on_a_page():
    call = Attended("a", torch.rand(1, 12, 30, 30), torch.ones(1, 12, 30, 5), None)
    width, height = call.plot(["word"] * 30)[0].figure.get_size_inches()
    assert width <= 7
    assert height <= 8


def test_words_that_are_not_the_tokens_are_refused():
    call = Attended("a", torch.rand(1, 1, 2, 3), torch.ones(1, 1, 3, 5), None)
    with pytest.raises(ValueError, match="expected 3 words, of 2 queries, got 2 and 2"):
        call.plot(["the", "cat"])
