"""Packed, an attention is the same function, with the same files."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from attnbook import (
    ALiBi,
    DecoderBlock,
    EncoderBlock,
    KeyValueCache,
    LanguageModel,
    ModelConfig,
    MultiHeadAttention,
    PackedAttention,
    Probe,
    Transformer,
    TransformerConfig,
    initialize,
    pack,
    unpack,
)
from attnbook.interop import to_gpt2, to_torch
from strategies import (
    assert_near,
    assert_rounded,
    configs,
    dtypes,
    modules,
    refused,
    run,
    seeds,
    tokens_for,
    with_random_biases,
)

PARTS = ["query", "key", "value"]


def causal(module: MultiHeadAttention) -> bool:
    """What its positions ask for; otherwise it looks ahead."""
    return isinstance(module.position, ALiBi) and not module.position.bidirectional


# The same function


@given(st.sampled_from(["fused", "explicit"]), modules(), st.integers(1, 6), seeds, dtypes)
def test_outputs_and_gradients_are_those_of_three_matrices(
    path: str, module: MultiHeadAttention, tokens: int, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    module.to(dtype)
    exact = copy.deepcopy(module).double()
    x = tokens_for(module, 2, tokens).requires_grad_()
    wide = x.detach().double().requires_grad_()
    mask = torch.rand(2, module.n_heads, tokens, tokens) < 0.7
    packed = pack(module)
    output = run(path, packed, x, mask=mask, causal=causal(module))
    expected = run(path, exact, wide, mask=mask, causal=causal(module))
    assert_rounded(output, expected)
    if dtype != torch.float64:
        return
    gradient = torch.randn_like(output)
    output.backward(gradient)
    expected.backward(gradient)
    assert_near(x.grad, wide.grad)
    for name, parameter in exact.output.named_parameters():
        assert_near(packed.output.get_parameter(name).grad, parameter.grad)
    for name, parameter in packed.packed.named_parameters():
        theirs = [exact.get_submodule(part).get_parameter(name).grad for part in PARTS]
        assert_near(parameter.grad, torch.cat(theirs))


def test_dropout_takes_the_same_weights() -> None:
    module = MultiHeadAttention(8, 2, dropout=0.4)
    packed, x = pack(module), torch.randn(2, 6, 8)
    outputs = []
    for attention in (module, packed, packed):
        torch.manual_seed(3 + len(outputs) // 2)
        outputs.append(attention(x))
    assert_near(outputs[1], outputs[0])
    assert not torch.allclose(outputs[1], outputs[2])


@given(modules(), seeds)
def test_step_by_step_it_is_the_whole(module: MultiHeadAttention, seed: int) -> None:
    torch.manual_seed(seed)
    packed, cache, x = pack(module), KeyValueCache(), tokens_for(module, 2, 5)
    parts = [packed(part, causal=True, cache=cache) for part in x.split([1, 3, 1], dim=1)]
    if isinstance(module.position, ALiBi) and module.position.bidirectional:
        parts, x = parts[-1:], x  # earlier steps do not see what comes later
    assert len(cache) == 5
    assert_near(parts[-1][:, -1], module(x, causal=True)[:, -1])


@given(configs(), seeds)
def test_models_learn_alike(config: ModelConfig, seed: int) -> None:
    torch.manual_seed(seed)
    three = LanguageModel(config)
    one = pack(copy.deepcopy(three))
    assert all(type(block.attention) is PackedAttention for block in one.blocks)
    ids = torch.randint(config.vocab_size, (2, 6))
    for model in (three, one):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            model.loss(ids[:, :-1], ids[:, 1:]).backward()
            optimizer.step()
    assert_near(one(ids), three(ids), atol=1e-9)
    most_likely = [model.generate(ids[:, :2], 4, temperature=0) for model in (one, three)]
    assert most_likely[0].equal(most_likely[1])


def test_a_probe_sees_the_same_attention() -> None:
    three = LanguageModel(ModelConfig(7, n_heads=2, max_tokens=6))
    one, tables = pack(copy.deepcopy(three)), []
    for model in (three, one):
        with Probe(model) as probe:
            model.loss(torch.arange(6)[None], torch.arange(1, 7)[None]).backward()
        tables.append(probe.attention)
        parts = probe.activations.parts
    for column in ("entropy", "largest", "logit_variance"):
        assert tables[0][column] == pytest.approx(tables[1][column])
    assert "attention.packed" in parts


# The same names and numbers


@pytest.mark.parametrize("bias", [True, False, "qkv", "output"])
def test_the_state_is_that_of_three_matrices(bias: Any) -> None:
    def made() -> MultiHeadAttention:
        sizes = {"n_kv_heads": 2, "d_head": 3, "d_value": 5}
        return with_random_biases(MultiHeadAttention(8, 4, **sizes, bias=bias))

    first, second, x = made(), made(), torch.randn(1, 3, 8)
    packed = pack(copy.deepcopy(first))
    state = packed.state_dict()
    assert state.keys() == first.state_dict().keys()
    assert all(state[name].equal(tensor) for name, tensor in first.state_dict().items())
    packed.load_state_dict(second.state_dict())
    assert_near(packed(x), second(x))
    second.load_state_dict(state)  # views of what has changed meanwhile
    assert_near(packed(x), second(x))
    assert not torch.allclose(packed(x), first(x))


def test_loaded_numbers_are_copies() -> None:
    packed, other = pack(MultiHeadAttention(8, 2)), MultiHeadAttention(8, 2)
    for assign in (False, True):
        packed.load_state_dict(other.state_dict(), assign=assign)
        before = packed.packed.weight.clone()
        with torch.no_grad():
            other.query.weight.add_(1)
        assert packed.packed.weight.equal(before)


def test_another_state_is_refused() -> None:
    packed = pack(MultiHeadAttention(8, 4, n_kv_heads=2, bias=True))
    state = {name: tensor.clone() for name, tensor in packed.state_dict().items()}
    # As many rows in all, but not of the same matrices; too many columns; a name too many.
    shuffled = {"query.weight": torch.zeros(4, 8), "key.weight": torch.zeros(8, 8)}
    wide = {f"{part}.weight": torch.zeros(len(state[f"{part}.weight"]), 9) for part in PARTS}
    for other, message in (
        (shuffled, r"size mismatch for query.weight: \(4, 8\) in the state, \(8, 8\) here"),
        (shuffled, r"size mismatch for key.weight: \(8, 8\) in the state, \(4, 8\) here"),
        (wide, r"size mismatch for value.weight: \(4, 9\) in the state, \(4, 8\) here"),
        ({"gate.weight": torch.zeros(1)}, r'Unexpected key\(s\) in state_dict: "gate.weight"'),
    ):
        with pytest.raises(RuntimeError, match=message) as caught:
            packed.load_state_dict(state | other)
        assert "packed.weight" not in str(caught.value)
    fewer = {name: tensor for name, tensor in state.items() if name != "key.weight"}
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "key.weight"\. $'):
        packed.load_state_dict(fewer)
    assert packed.load_state_dict(fewer, strict=False).missing_keys == ["key.weight"]
    bare = pack(MultiHeadAttention(8, 4, n_kv_heads=2, bias="output"))
    with pytest.raises(
        RuntimeError, match=r'Unexpected .*: "query.bias", "key.bias", "value.bias"'
    ):
        bare.load_state_dict(state)
    assert all(packed.state_dict()[name].equal(tensor) for name, tensor in state.items())


def test_files_are_those_of_three_matrices(tmp_path: Path) -> None:
    three = LanguageModel(ModelConfig(9, attention_bias=True, n_kv_heads=2))
    three.apply(lambda m: isinstance(m, MultiHeadAttention) and with_random_biases(m))
    ids = torch.randint(9, (2, 7))
    before = three(ids)
    three.save(tmp_path / "three")
    pack(three).save(tmp_path / "one")
    for name in ("three", "one"):
        again = LanguageModel.load(tmp_path / name)
        assert type(again.blocks[0].attention) is MultiHeadAttention
        assert again(ids).equal(before)
        assert_near(pack(again)(ids), before)


def test_rows_lie_as_torch_has_them() -> None:
    module = with_random_biases(MultiHeadAttention(8, 2, bias=True))
    theirs, packed = to_torch(module), pack(module)
    assert packed.packed.weight.equal(theirs.in_proj_weight)
    assert packed.packed.bias.equal(theirs.in_proj_bias)


@given(modules())
def test_unpacked_it_is_what_it_was(module: MultiHeadAttention) -> None:
    packed = pack(module).eval()
    again = unpack(packed)
    assert type(again) is MultiHeadAttention
    assert str(again) == str(module)
    assert again.position is module.position
    assert not again.training
    assert again.state_dict().keys() == module.state_dict().keys()
    for name, parameter in module.named_parameters():
        assert again.get_parameter(name).equal(parameter)
    again.query.weight.data.add_(1)
    assert not again.query.weight.equal(packed.packed.weight[: len(again.query.weight)])


def test_what_is_trained_of_each_stays() -> None:
    module = MultiHeadAttention(8, 2, bias=True, dropout=0.2).eval()
    for part in PARTS:
        module.get_submodule(part).requires_grad_(requires_grad=False)
    for made in (pack(module), unpack(pack(module))):
        trained = [name for name, p in made.named_parameters() if p.requires_grad]
        assert trained == ["output.weight", "output.bias"]
        assert (made.training, made.dropout) == (False, 0.2)


def test_a_packed_one_is_copied_and_pickled() -> None:
    module = MultiHeadAttention(8, 2)
    packed, x, other = pack(module), torch.randn(1, 3, 8), MultiHeadAttention(8, 2)
    for again in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert_near(again(x), module(x))
        again.load_state_dict(other.state_dict())
        assert again.state_dict().keys() == module.state_dict().keys()
        assert_near(again(x), other(x))
    assert_near(packed(x), module(x))


def test_packing_draws_no_numbers() -> None:
    model, state = LanguageModel(ModelConfig(7)), torch.get_rng_state()
    unpack(pack(model))
    assert torch.get_rng_state().equal(state)


# Whole models


def test_attention_to_a_memory_stays_as_it_is() -> None:
    config = TransformerConfig(9, n_layers=1, padding_id=0)
    three = Transformer(config)
    one = pack(copy.deepcopy(three))
    source, target = torch.randint(1, 9, (2, 2, 5))
    assert_near(one(source, target), three(source, target))
    kinds = [type(m).__name__ for m in one.modules() if isinstance(m, MultiHeadAttention)]
    assert kinds == ["PackedAttention", "PackedAttention", "MultiHeadAttention"]
    back = unpack(one)
    assert back is one
    assert back(source, target).equal(three(source, target))
    lone = nn.ModuleDict({"cross_attention": MultiHeadAttention(8, 2)})  # the name alone is no sign
    assert type(pack(lone)["cross_attention"]) is PackedAttention


def test_one_attention_in_two_places_stays_one() -> None:
    blocks = nn.ModuleList(EncoderBlock(8, 2, 16) for _ in range(2))
    blocks[1].attention = blocks[0].attention
    pack(blocks)
    assert type(blocks[0].attention) is PackedAttention
    assert blocks[0].attention is blocks[1].attention
    unpack(blocks)
    assert type(blocks[0].attention) is MultiHeadAttention
    assert blocks[0].attention is blocks[1].attention


# What cannot be packed


def shared(module: MultiHeadAttention) -> None:
    module.key = module.query


def biases_shared(module: MultiHeadAttention) -> None:
    for part in PARTS:
        module.get_submodule(part).bias = nn.Parameter(torch.zeros(8))
    module.key.bias = module.query.bias


def shared_with_output(module: MultiHeadAttention) -> None:
    module.output.weight = module.query.weight


def cut(module: MultiHeadAttention) -> None:
    for part in PARTS:
        setattr(module, part, nn.Linear(8, 4, bias=False))


def replaced(module: MultiHeadAttention) -> None:
    module.value = nn.Sequential(module.value)


def half_biased(module: MultiHeadAttention) -> None:
    module.query = nn.Linear(8, 8)


def half_trained(module: MultiHeadAttention) -> None:
    module.query.weight.requires_grad_(requires_grad=False)


def of_two_types(module: MultiHeadAttention) -> None:
    module.key.float()


def pruned(module: MultiHeadAttention) -> None:
    prune.random_unstructured(module.key, "weight", 0.5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            shared,
            ValueError,
            "projections share a parameter: packed, each would have its own",
        ),
        (biases_shared, ValueError, "projections share a parameter: packed, each would have its"),
        (shared_with_output, ValueError, "projections share a parameter: packed, each would have"),
        (cut, ValueError, "query.weight must have shape (8, 8), got (4, 8)"),
        (replaced, TypeError, "value must be a plain nn.Linear, got a Sequential"),
        (pruned, TypeError, "key must have its weight as a parameter: it was pruned or rescaled"),
        (half_biased, ValueError, "of query, key and value some have a bias and some have not"),
        (half_trained, ValueError, "query, key and value differ in requires_grad: {False, True}"),
        (of_two_types, ValueError, "query, key and value differ in dtype: {"),
    ],
)
def test_what_cannot_be_one_matrix_is_refused(
    change: Callable[[MultiHeadAttention], None], error: type[Exception], message: str
) -> None:
    blocks = nn.ModuleList(EncoderBlock(8, 2, 16) for _ in range(2))
    change(blocks[1].attention)
    held = [block.attention for block in blocks]
    with pytest.raises(error) as caught:
        pack(blocks)
    assert str(caught.value).startswith(message)
    assert [block.attention for block in blocks] == held


def test_a_matrix_of_two_layers_is_refused() -> None:
    blocks = nn.ModuleList(EncoderBlock(8, 2, 16) for _ in range(2))
    blocks[1].attention.value.weight = blocks[0].attention.value.weight
    with refused(ValueError, "value shares a parameter with another part of the module"):
        pack(blocks)
    assert type(blocks[0].attention) is MultiHeadAttention


def test_what_was_done_to_the_matrix_is_not_lost() -> None:
    packed = pack(MultiHeadAttention(8, 2))
    prune.random_unstructured(packed.packed, "weight", 0.5)
    with refused(
        TypeError, "packed must have its weight as a parameter: it was pruned or rescaled"
    ):
        unpack(packed)
    packed.packed = nn.Sequential(packed.packed)
    with refused(TypeError, "packed must be a plain nn.Linear, got a Sequential"):
        unpack(packed)
    with refused(AttributeError, "a packed attention has no key to replace: unpack it first"):
        packed.key = nn.Linear(8, 8)


@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_attention_is_refused() -> None:
    class Own(MultiHeadAttention):
        pass

    packed = pack(MultiHeadAttention(8, 2))
    message = "there is no MultiHeadAttention in this PackedAttention that is not packed"
    with refused(ValueError, message):
        pack(packed)
    with refused(ValueError, "there is no MultiHeadAttention in this Own"):
        pack(Own(8, 2))
    with refused(TypeError, "expected a MultiHeadAttention, got a Own"):
        PackedAttention(Own(8, 2))
    with refused(TypeError, "expected a MultiHeadAttention, got a PackedAttention"):
        PackedAttention(packed)
    with refused(ValueError, "there is no PackedAttention in this DecoderBlock"):
        unpack(DecoderBlock(8, 2, 16))
    with refused(TypeError, "module must be a Module, got a int"):
        pack(3)
    with refused(TypeError, "module must be a Module, got a str"):
        unpack("model")
    wide = MultiHeadAttention(8, 2, d_memory=6)
    message = "keys and values of a memory of width 6 cannot be packed with queries of width 8"
    with refused(ValueError, message):
        pack(wide)


def test_a_packed_one_refuses_what_it_cannot_do() -> None:
    packed, x = pack(MultiHeadAttention(8, 2)), torch.randn(1, 3, 8)
    with refused(ValueError, "a packed attention has no memory: it attends to its own tokens"):
        packed(x, x)
    with refused(ValueError, "x must have shape (batch, tokens, 8), got (1, 3, 7)"):
        packed(x[..., :7])
    packed.output.float()  # what the tokens meet first counts
    with refused(TypeError, "x is torch.float32 but the weights are torch.float64"):
        packed(x.float())
    packed.output.double()
    message = "expected MultiHeadAttention of attnbook, got PackedAttention: unpack it first"
    with refused(TypeError, message):
        to_gpt2(packed)
    message = "W_Q, W_K and W_V are one matrix: draw initial values before pack(model)"
    with refused(ValueError, message):
        initialize(packed, "glorot")


def test_its_parameters_are_all_there_is() -> None:
    packed = pack(MultiHeadAttention(8, 4, n_kv_heads=2, bias="qkv"))
    names = {name: tuple(p.shape) for name, p in packed.named_parameters()}
    assert names == {"output.weight": (8, 8), "packed.weight": (16, 8), "packed.bias": (16,)}
