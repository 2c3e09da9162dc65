import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnbook import ALiBi, EncoderBlock, KeyValueCache, MultiHeadAttention, Rotary
from strategies import (
    POSITIONS,
    assert_near,
    assert_rounded,
    dtypes,
    memory_for,
    modules,
    on_both_paths,
    refused,
    run,
    seeds,
    tokens_for,
    with_every_group,
)


def step_by_step(
    path: str, module: MultiHeadAttention, x: Tensor, chunks: list[int], mask: Tensor | None = None
) -> Tensor:
    """Outputs of all tokens, so many at a time; rows and columns of the mask as they come."""
    cache, outputs, start = KeyValueCache(), [], 0
    for size in chunks:
        end = start + size
        seen = mask
        if mask is not None:
            rows = slice(None) if mask.shape[-2] == 1 else slice(start, end)
            seen = mask[..., rows, :end]
        outputs.append(run(path, module, x[:, start:end], mask=seen, causal=True, cache=cache))
        start = end
        assert len(cache) == end
    return torch.cat(outputs, dim=1)


@given(
    module=modules(),
    chunks=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    batch=st.integers(1, 3),
    kind=st.sampled_from(["padding", "queries", "heads", "none"]),
    seed=seeds,
    dtype=dtypes,
    path=st.sampled_from(["fused", "explicit"]),
)
def test_decoding_with_a_cache_gives_what_all_tokens_at_once_give(
    path: str,
    module: MultiHeadAttention,
    chunks: list[int],
    batch: int,
    kind: str,
    seed: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(seed)
    tokens = sum(chunks)
    x = tokens_for(module.to(dtype), batch, tokens)
    shapes = {
        "padding": (batch, 1, 1, tokens),
        "queries": (tokens, tokens),
        "heads": (batch, module.n_heads, tokens, tokens),
    }
    mask = torch.rand(shapes[kind]) < 0.6 if kind in shapes else None
    expected = run(path, module, x, mask=mask, causal=True)
    assert_rounded(step_by_step(path, module, x, chunks, mask), expected)


def test_gradients_through_a_cache_are_those_without() -> None:
    module = MultiHeadAttention(8, 4, n_kv_heads=2, position=Rotary())
    x = torch.randn(2, 5, 8, requires_grad=True)
    inputs, direction = (x, *module.parameters()), torch.randn(2, 5, 8)
    with_cache = step_by_step("fused", module, x, [2, 1, 2])
    gradients = torch.autograd.grad(with_cache, inputs, direction)
    expected = torch.autograd.grad(module(x, causal=True), inputs, direction)
    for ours, theirs in zip(gradients, expected, strict=True):
        assert_near(ours, theirs)


@pytest.mark.parametrize("position", [None, *POSITIONS[1:3], POSITIONS[4]], ids=str)
def test_without_a_causal_mask_new_tokens_see_each_other(position: Rotary | ALiBi | None) -> None:
    module, cache = MultiHeadAttention(8, 2, position=position), KeyValueCache()
    x = torch.randn(2, 5, 8)
    module(x[:, :2], cache=cache)
    assert_near(module(x[:, 2:], cache=cache), module(x)[:, 2:])


@with_every_group
def test_cache_holds_the_keys_and_values_of_its_own_heads(n_kv_heads: int) -> None:
    module = MultiHeadAttention(16, 4, n_kv_heads=n_kv_heads, d_value=3, position=Rotary())
    cache, x = KeyValueCache(), torch.randn(2, 6, 16)
    assert len(cache) == 0
    assert cache.key is cache.value is cache.memory is None
    module(x[:, :4], cache=cache)
    module(x[:, 4:], cache=cache)
    assert len(cache) == 6
    assert cache.key.shape == (2, n_kv_heads, 6, 4)
    assert cache.value.shape == (2, n_kv_heads, 6, 3)
    assert cache.memory is None
    keys = module.key(x).unflatten(-1, (n_kv_heads, 4)).transpose(1, 2)
    assert_near(cache.key, Rotary().rotate(keys, torch.arange(6)))
    assert_near(cache.value, module.value(x).unflatten(-1, (n_kv_heads, 3)).transpose(1, 2))


def test_cache_changes_only_when_told_to_keep() -> None:
    cache, key, value = KeyValueCache(), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    for start, end in [(0, 2), (2, 2), (2, 5)]:
        keys, values = cache.with_new(key[:, :, start:end], value[:, :, start:end])
        assert len(cache) == start
        assert torch.equal(keys, key[:, :, :end])
        assert torch.equal(values, value[:, :, :end])
        cache.keep(keys, values)
        assert keys is cache.key
        assert values is cache.value
        assert len(cache) == end
    assert repr(cache) == "KeyValueCache(5 tokens)"


@pytest.mark.parametrize("held", [0, 3])
@on_both_paths
def test_call_that_fails_leaves_the_cache_as_it_was(path: str, held: int) -> None:
    module, cache = MultiHeadAttention(8, 2, position=ALiBi()), KeyValueCache()
    x, wrong = torch.randn(1, 5, 8), torch.ones(4, 4, dtype=torch.bool)
    if held:
        module(x[:, :held], causal=True, cache=cache)
    with pytest.raises(ValueError, match="does not broadcast"):
        run(path, module, x[:, held:], mask=wrong, causal=True, cache=cache)
    with pytest.raises(ValueError, match="ALiBi favours"):
        run(path, module, x[:, held:], cache=cache)
    assert len(cache) == held
    again = run(path, module, x[:, held:], causal=True, cache=cache)
    assert_near(again, run(path, module, x, causal=True)[:, held:])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@on_both_paths
def test_so_does_a_call_that_fails_in_its_last_step(path: str) -> None:
    module, cache = MultiHeadAttention(8, 2), KeyValueCache()
    handle = module.output.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(path, module, torch.randn(1, 3, 8), causal=True, cache=cache)
    assert len(cache) == 0
    handle.remove()
    run(path, module, torch.randn(1, 3, 8), causal=True, cache=cache)
    assert len(cache) == 3


def test_so_does_a_block_that_is_interrupted() -> None:
    block, cache = EncoderBlock(8, 2, 16), KeyValueCache()
    block(torch.randn(1, 3, 8), causal=True, cache=cache)
    block.feed_forward.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        block(torch.randn(1, 2, 8), causal=True, cache=cache)
    assert len(cache) == 3


@on_both_paths
def test_call_that_fails_leaves_the_cache_of_a_memory_empty(path: str) -> None:
    module, cache, memory = MultiHeadAttention(8, 2), KeyValueCache(), torch.randn(1, 4, 8)
    mask = torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="does not broadcast"):
        run(path, module, torch.randn(1, 3, 8), memory, mask, cache=cache)
    assert len(cache) == 0
    assert cache.memory is None


# Memory


class Count:
    """How often a module ran."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.calls = 0
        module.register_forward_hook(self)

    def __call__(self, *args: object) -> None:
        self.calls += 1


@given(
    module=modules(positions=[None], other_memory=True),
    chunks=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    keys=st.integers(0, 4),
    seed=seeds,
    dtype=dtypes,
    path=st.sampled_from(["fused", "explicit"]),
)
def test_a_memorys_keys_are_computed_once(
    path: str,
    module: MultiHeadAttention,
    chunks: list[int],
    keys: int,
    seed: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(seed)
    cache, counts = KeyValueCache(), [Count(module.key), Count(module.value)]
    x, memory = tokens_for(module.to(dtype), 2, sum(chunks)), memory_for(module, 2, keys)
    mask = torch.rand(2, 1, 1, keys) < 0.7
    steps = [run(path, module, part, memory, mask, cache=cache) for part in x.split(chunks, 1)]
    assert [count.calls for count in counts] == [1, 1]
    assert cache.memory is memory
    assert len(cache) == keys
    assert_rounded(torch.cat(steps, dim=1), run(path, module, x, memory, mask))


# Bad input


def test_cache_is_of_another_batch() -> None:
    module, cache = MultiHeadAttention(8, 4, n_kv_heads=2), KeyValueCache()
    module(torch.randn(2, 3, 8), cache=cache)
    message = (
        "the cache holds keys of shape (batch, heads, tokens, width) = (2, 2, 3, 2), "
        "the new ones have (1, 2, 1, 2)"
    )
    with refused(ValueError, message):
        module(torch.randn(1, 1, 8), cache=cache)
    assert len(cache) == 3


@pytest.mark.parametrize(
    ("key", "value", "name", "held", "new"),
    [
        ((1, 3, 1, 4), (1, 3, 1, 6), "keys", (2, 3, 5, 4), (1, 3, 1, 4)),
        ((2, 1, 1, 4), (2, 1, 1, 6), "keys", (2, 3, 5, 4), (2, 1, 1, 4)),
        ((2, 3, 1, 2), (2, 3, 1, 6), "keys", (2, 3, 5, 4), (2, 3, 1, 2)),
        ((2, 3, 1, 4), (2, 3, 1, 4), "values", (2, 3, 5, 6), (2, 3, 1, 4)),
    ],
    ids=["batch", "heads", "key width", "value width"],
)
def test_cache_holds_other_sizes(
    key: tuple[int, ...],
    value: tuple[int, ...],
    name: str,
    held: tuple[int, ...],
    new: tuple[int, ...],
) -> None:
    cache = KeyValueCache()
    cache.keep(torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 5, 6))
    message = (
        f"the cache holds {name} of shape (batch, heads, tokens, width) = {held}, "
        f"the new ones have {new}"
    )
    with refused(ValueError, message):
        cache.with_new(torch.zeros(key), torch.zeros(value))
    assert cache.key.shape == (2, 3, 5, 4)
    assert cache.value.shape == (2, 3, 5, 6)


def test_cache_holds_another_memory() -> None:
    module, cache, x = MultiHeadAttention(8, 2), KeyValueCache(), torch.randn(1, 3, 8)
    memory = torch.randn(1, 4, 8)
    module(x, memory, cache=cache)
    message = "the cache holds keys and values of something else than this tensor"
    for other in (memory + 1, torch.randn(1, 2, 8)):
        with refused(ValueError, message):
            module(x, other, cache=cache)
    with refused(ValueError, "the cache holds a memory's keys: self-attention needs its own"):
        module(x, cache=cache)
    assert len(cache) == 4
    with torch.no_grad():
        assert torch.equal(module(x, memory.clone(), cache=cache), module(x, memory, cache=cache))


@pytest.mark.parametrize("other", ["of its own gradient", "meta", "of another type"])
def test_an_equal_memory_is_another(other: str) -> None:
    module, cache, x = MultiHeadAttention(8, 2), KeyValueCache(), torch.randn(1, 3, 8)
    memory = torch.randn(1, 4, 8)
    module(x, memory, cache=cache)
    another = {
        "of its own gradient": memory.clone().requires_grad_(),
        "meta": memory.to("meta"),
        "of another type": memory.float(),
    }[other]
    message = "the cache holds keys and values of something else than this tensor"
    with torch.autocast("cpu", enabled=other == "of another type"), refused(ValueError, message):
        module(x, another, cache=cache)


def test_without_numbers_no_memory_equals_another() -> None:
    module, cache = MultiHeadAttention(8, 2).to("meta"), KeyValueCache()
    x, memory = torch.randn(1, 3, 8, device="meta"), torch.randn(1, 4, 8, device="meta")
    module(x, memory, cache=cache)
    assert module(x, memory, cache=cache).shape == (1, 3, 8)
    message = "the cache holds keys and values of something else than this tensor"
    with refused(ValueError, message):
        module(x, memory.clone(), cache=cache)


def test_a_cache_is_cut() -> None:
    module, cache, x = MultiHeadAttention(8, 2), KeyValueCache(), torch.randn(1, 5, 8)
    whole = module(x, causal=True, cache=cache)
    cache.cut(3)
    assert len(cache) == 3
    assert_near(module(x[:, 3:], causal=True, cache=cache), whole[:, 3:])
    cache.cut(1)
    assert len(cache) == 1
    assert_near(module(x[:, 1:], causal=True, cache=cache), whole[:, 1:])
    cache.cut(0)
    assert cache.key is cache.value is None
    assert_near(module(x, causal=True, cache=cache), whole)


def test_a_cache_of_a_memory_is_cut_with_its_memory() -> None:
    module, cache, x = MultiHeadAttention(8, 2), KeyValueCache(), torch.randn(1, 3, 8)
    memory = torch.randn(1, 5, 8)
    whole = module(x, memory, cache=cache)
    for nothing_to_cut in (5, 6):
        cache.cut(nothing_to_cut)
        assert cache.memory is memory  # and no copy, which it would be compared with in vain
    assert torch.equal(module(x, memory, cache=cache), whole)
    cache.cut(2)
    assert_near(module(x, memory[:, :2], cache=cache), module(x, memory[:, :2]))
    message = "the cache holds keys and values of something else than this tensor"
    with refused(ValueError, message):
        module(x, memory, cache=cache)


def test_a_cache_is_cut_to_no_negative_number_of_tokens() -> None:
    cache = KeyValueCache()
    MultiHeadAttention(8, 2)(torch.randn(1, 3, 8), cache=cache)
    with refused(ValueError, "n_tokens must be an integer, 0 or more, got -1"):
        cache.cut(-1)
    assert len(cache) == 3


@pytest.mark.parametrize(
    ("options", "own"),
    [({"n_kv_heads": 2}, (2, 2, 2)), ({"d_value": 3}, (4, 2, 3)), ({"d_head": 1}, (4, 1, 1))],
)
def test_cache_of_a_memory_is_of_other_sizes(
    options: dict[str, int], own: tuple[int, int, int]
) -> None:
    cache, x, memory = KeyValueCache(), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    MultiHeadAttention(8, 4)(x, memory, cache=cache)
    message = f"the cache holds (heads, d_head, d_value) = (4, 2, 2), this attention has {own}"
    with refused(ValueError, message):
        MultiHeadAttention(8, 4, **options)(x, memory, cache=cache)


def test_cache_is_of_another_type() -> None:
    module, cache, x = MultiHeadAttention(8, 2).float(), KeyValueCache(), torch.randn(1, 3, 8)
    module(x.float(), causal=True, cache=cache)
    message = "the cache holds keys of torch.float32, the new are torch.bfloat16"
    with refused(TypeError, message), torch.autocast("cpu", dtype=torch.bfloat16):
        module(x.float(), causal=True, cache=cache)
    assert len(cache) == 3


@pytest.mark.parametrize("return_weights", [False, True])
def test_cache_of_a_memory_is_of_another_type(return_weights: bool) -> None:
    module, cache = MultiHeadAttention(8, 2).float(), KeyValueCache()
    x, memory = torch.randn(1, 3, 8).float(), torch.randn(1, 4, 8).float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        module(x, memory, cache=cache)
    with refused(TypeError, "query is torch.float32 but key is torch.bfloat16"):
        module(x, memory, cache=cache, return_weights=return_weights)


def test_values_in_a_cache_are_of_another_type() -> None:
    cache, new = KeyValueCache(), torch.zeros(1, 2, 3, 4).float()
    cache.keep(new, new.double())
    with refused(TypeError, "the cache holds values of torch.float64, the new are torch.float32"):
        cache.with_new(new, new)


def test_cache_holds_the_tokens_themselves() -> None:
    module, cache, x = MultiHeadAttention(8, 2), KeyValueCache(), torch.randn(1, 3, 8)
    module(x, cache=cache)
    message = "the cache holds keys and values of something else than this tensor"
    with refused(ValueError, message):
        module(x, x, cache=cache)
    assert cache.memory is None


def test_mask_without_the_keys_in_the_cache() -> None:
    module, cache, x = MultiHeadAttention(8, 2), KeyValueCache(), torch.randn(1, 3, 8)
    module(x, cache=cache)
    message = (
        "mask of shape (3, 3) does not broadcast to the logits' shape "
        "(…, queries, keys) = (1, 2, 3, 6)"
    )
    with refused(ValueError, message):
        module(x, mask=torch.ones(3, 3).bool(), cache=cache)


@pytest.mark.usefixtures("without_shape_checks")
def test_what_cannot_be_held_is_refused() -> None:
    cache, key = KeyValueCache(), torch.zeros(1, 2, 3, 4)
    cache.keep(key, torch.zeros(1, 2, 3, 5))
    for wrong_key, wrong_value in (
        (key[0], key[0]),
        (key, torch.zeros(1, 2, 4, 4)),
        (key, torch.zeros(1, 1, 3, 4)),
    ):
        message = (
            "keys and values need the same batch, heads and tokens, (batch, heads, tokens, width), "
            f"got {tuple(wrong_key.shape)} and {tuple(wrong_value.shape)}"
        )
        with refused(ValueError, message):
            cache.keep(wrong_key, wrong_value)
    assert cache.key is key
