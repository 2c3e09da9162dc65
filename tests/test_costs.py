"""Costs against what runs: torch's counter of operations, numel, caches, what autograd saves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import attnbook.attention
from attnbook import Encoder, LanguageModel, ModelConfig, TransformerConfig, convert
from attnbook.costs import (
    Costs,
    activation_bytes,
    attention_pairs,
    cache_bytes,
    crossing,
    decoding_bytes,
    forward_operations,
    parameters,
    state_bytes,
    training_operations,
)
from attnbook.masks import causal_mask, combine_masks, near_mask

BASE = ModelConfig(11, d_model=16, n_heads=4, n_layers=2, d_ff=24, max_tokens=20)
LLAMA: dict[str, Any] = {
    "norm": "pre",
    "norm_kind": "rms",
    "position": "rotary",
    "activation": "swiglu",
    "tied": False,
    "scaled": False,
    "feed_forward_bias": False,
}
CHOICES: dict[str, dict[str, Any]] = {
    "usual": {},
    "gpt2": {
        "norm": "pre",
        "position": "learned",
        "activation": "gelu_tanh",
        "attention_bias": True,
    },
    "llama": LLAMA,
    "one key head": {**LLAMA, "n_kv_heads": 1},
    "qwen3": {**LLAMA, "n_kv_heads": 2, "d_head": 6, "qk_norm": True},
    "normed heads": {"n_kv_heads": 2, "qk_norm": True},
    "grouped": {"n_kv_heads": 2, "activation": "gelu", "attention_bias": "qkv"},
    "wide heads": {"d_head": 6, "n_kv_heads": 2, "attention_bias": "output", "tied": False},
    "odd heads": {"n_heads": 3, "d_head": 5, "position": "none"},
    "window": {"window": 3, "norm_bias": False},
    "llama, window": {**LLAMA, "window": 3, "rotary_fraction": 0.5},
    "alibi": {"position": "alibi", "norm": "none"},
    "deepnorm": {"norm": "deepnorm", "final_norm": True},
    "pre, no last norm": {"norm": "pre", "final_norm": False},
    "bert": {
        "position": "learned",
        "activation": "gelu",
        "attention_bias": True,
        "embedding_norm": True,
        "prediction_head": True,
    },
    "head, relu": {"prediction_head": True, "tied": False, "norm_kind": "rms"},
    "head, swiglu": {"prediction_head": True, "activation": "swiglu"},
    "gemma": {**LLAMA, "activation": "geglu", "scaled": True},
    "one layer": {"n_layers": 1, "d_ff": None},
}
CONFIGS = {name: replace(BASE, **choices) for name, choices in CHOICES.items()}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
each_size = pytest.mark.parametrize(("batch", "n_tokens"), [(1, 1), (3, 5)])
each_stack = pytest.mark.parametrize("stack", [LanguageModel, Encoder])


@pytest.fixture
def by_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models compute their attention as it is written, with all weights."""

    def explicit(*call: Any) -> Tensor:
        return attnbook.attention._by_definition(*call)[0]

    monkeypatch.setattr(attnbook.attention, "_by_kernel", explicit)


# The kernel of CPUs is not in torch's table: these are its formulas for the kernels of GPUs.
KERNEL = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda q, k, v, *_, **__: flop_counter.sdpa_flop_count(q, k, v)
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: flop_counter.sdpa_backward_flop_count(grad, q, k, v)
    ),
}


def count_operations(call: Callable[[], Any]) -> tuple[int, Any]:
    """Operations by torch's own counter, and the result."""
    counter = flop_counter.FlopCounterMode(display=False, custom_mapping=KERNEL)
    with counter:
        result = call()
    return counter.get_total_flops(), result


def make_ids(config: ModelConfig, batch: int, n_tokens: int) -> Tensor:
    return torch.randint(config.vocab_size, (batch, n_tokens))


@each_config
@each_size
@each_stack
def test_forward_operations_equal_the_counter(by_definition, config, batch, n_tokens, stack):
    model = stack(config)
    ids = make_ids(config, batch, n_tokens)
    assert (
        count_operations(lambda: model(ids))[0] == forward_operations(config, n_tokens, batch).total
    )
    assert (
        count_operations(lambda: model(ids, at=-1))[0]
        == forward_operations(config, n_tokens, batch, n_logits=1).total
    )


@each_config
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_operations_by_kernel_equal_the_counter(config, backend):
    model, ids = LanguageModel(config), make_ids(config, 2, 7)
    with sdpa_kernel(backend):
        assert count_operations(lambda: model(ids))[0] == forward_operations(config, 7, 2).total


@each_config
@pytest.mark.parametrize(("n_seen", "n_new", "batch"), [(0, 1, 1), (6, 1, 3), (4, 5, 2)])
def test_decoding_operations_equal_the_counter(by_definition, config, n_seen, n_new, batch):
    model, ids = LanguageModel(config), make_ids(config, batch, n_seen + n_new)
    cache = model.new_cache()
    with torch.no_grad():
        if n_seen:
            model(ids[:, :n_seen], cache=cache)
        counted, _ = count_operations(lambda: model(ids[:, n_seen:], cache=cache))
    assert counted == forward_operations(config, n_new, batch, n_seen=n_seen).total


@each_config
@each_size
@each_stack
def test_backward_is_twice_forward(by_definition, config, batch, n_tokens, stack):
    model, ids = stack(config), make_ids(config, batch, n_tokens)
    forward, loss = count_operations(lambda: model.loss(ids, ids))
    backward, _ = count_operations(loss.backward)
    assert backward == 2 * forward
    assert forward + backward == training_operations(config, n_tokens, batch).total


@each_config
def test_fused_backward_computes_the_logits_again(config):
    model, ids = LanguageModel(config), make_ids(config, 2, 7)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        counted, _ = count_operations(lambda: model.loss(ids, ids).backward())
    assert counted == training_operations(config, 7, 2, fused=True).total


def run_checkpointed(model: Encoder, ids: Tensor, **settings: Any) -> Tensor:
    """The loss, with each block checkpointed."""
    blocks = list(model.blocks)
    for block in blocks:

        def again(x: Tensor, *args: Any, run: Any = block.forward, **more: Any) -> Tensor:
            return checkpoint(lambda y: run(y, *args, **more), x, **settings)

        block.forward = again  # type: ignore[method-assign]
    return model.loss(ids, ids.clone())


@each_config
def test_checkpointing_runs_blocks_forward_twice(by_definition, config):
    model, ids = LanguageModel(config), make_ids(config, 2, 7)
    with set_checkpoint_early_stop(False):
        counted, _ = count_operations(
            lambda: run_checkpointed(model, ids, use_reentrant=False).backward()
        )
    assert counted == training_operations(config, 7, 2, checkpointing=True).total


GPT2 = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=30)
LLAMA2 = LlamaConfig(
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=61,
    max_position_embeddings=30,
)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("make", "settings", "read"),
    [
        (GPT2LMHeadModel, GPT2, convert.from_gpt2),
        (LlamaForCausalLM, LLAMA2, convert.from_llama),
    ],
    ids=["gpt2", "llama"],
)
def test_costs_of_transformers_models(make, settings, read, attention, batch):
    theirs = make._from_config(settings, attn_implementation=attention).eval()
    config, ids = read(theirs).config, make_ids(BASE, batch, 9)
    counted, _ = count_operations(lambda: theirs(ids, use_cache=False))
    assert counted == forward_operations(config, 9, batch).total
    assert parameters(config).total == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize(("n_seen", "n_tokens"), [(0, 1), (0, 8), (5, 1), (5, 4)])
def test_pairs_are_those_that_the_masks_allow(window, n_seen, n_tokens):
    config, n_keys = replace(BASE, window=window), n_seen + n_tokens
    near = near_mask(torch.arange(n_keys), n_seen, window)
    causal = combine_masks(near, causal_mask(n_tokens, n_keys))
    either = n_tokens * n_keys if near is None else int(near.sum())
    assert attention_pairs(config, n_tokens, n_seen) == n_tokens * n_keys
    assert attention_pairs(config, n_tokens, n_seen, pairs="causal") == int(causal.sum())
    assert attention_pairs(config, n_tokens, n_seen, pairs="two_sided") == either


def test_skipping_saves_operations_of_attention_alone():
    every, skipping = (forward_operations(BASE, 9, pairs=pairs) for pairs in ("all", "causal"))
    assert skipping["attention"] * 81 == every["attention"] * 45
    assert {**skipping, "attention": 0} == {**every, "attention": 0}


@each_config
@each_stack
def test_parameters_equal_numel(config, stack):
    model = stack(config)
    assert parameters(config).total == sum(p.numel() for p in model.parameters())
    parts: dict[str, int] = dict.fromkeys(parameters(config), 0)
    for name, parameter in model.named_parameters():
        words = name.split(".")
        if words[0] in ("head", "output", "output_bias"):
            part = "output"
        elif "norm" in name:
            part = "norms"
        elif words[0] == "blocks":
            part = words[2].replace("_", "-")
        else:
            part = words[0]
        parts[part] += parameter.numel()
    assert dict(parameters(config)) == parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_equals_what_adam_holds(dtype):
    config = CONFIGS["bert"]
    model, ids = LanguageModel(config).to(dtype), make_ids(config, 2, 7)
    optimizer = torch.optim.AdamW(model.parameters())
    model.loss(ids, ids).backward()
    optimizer.step()
    held: dict[str, int] = {"parameters": 0, "gradients": 0, "exp_avg": 0, "exp_avg_sq": 0}
    for parameter in model.parameters():
        held["parameters"] += parameter.nbytes
        held["gradients"] += parameter.grad.nbytes
        for name in ("exp_avg", "exp_avg_sq"):
            held[name] += optimizer.state[parameter][name].nbytes
    assert list(state_bytes(config, itemsize=dtype.itemsize).values()) == list(held.values())


@each_config
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_cache_equals_nbytes_of_a_run(config, dtype):
    model, ids = LanguageModel(config).to(dtype), make_ids(config, 3, 7)
    for allocated in (7, 12):
        cache = model.new_cache(allocated)
        model.generate(ids, 1, cache=cache)
        held = sum(each.nbytes for each in cache)
        assert held == cache_bytes(config, allocated, 3, itemsize=dtype.itemsize)


@pytest.mark.parametrize("n_seen", [1, 2, 5])
def test_window_needs_so_many_tokens_of_the_cache(n_seen):
    config = replace(BASE, window=3, n_layers=1)
    needed = cache_bytes(config, n_seen, windowed=True)
    assert needed == cache_bytes(config, min(n_seen, 2))
    # Without those that need not be kept the last token's logits are the same.
    model = LanguageModel(replace(config, position="rotary"))
    ids = make_ids(config, 1, n_seen + 1)
    kept = ids[:, -1 - min(n_seen, 2) :]
    assert torch.allclose(model(ids, at=-1), model(kept, at=-1))


class Used(TorchDispatchMode):
    """Collects the parameters that take part in any operation but a look-up."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parameters = {p.untyped_storage().data_ptr(): p for p in model.parameters()}
        self.nbytes: dict[int, int] = {}

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [] if call is torch.ops.aten.embedding.default else tree_leaves(args)
        for tensor in inputs:
            address = isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr()
            if address in self.parameters:
                self.nbytes[address] = self.parameters[address].nbytes
        return call(*args, **(kwargs or {}))


@each_config
def test_decoding_reads_what_a_step_uses(config):
    model, ids = LanguageModel(config), make_ids(config, 3, 7)
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :6], cache=cache)
        seen = sum(each.nbytes for each in cache)
        with Used(model) as used:
            model(ids[:, 6:], cache=cache)
    costs = decoding_bytes(config, 6, batch=3, itemsize=8)
    assert costs.parts == {"weights": sum(used.nbytes.values()), "cache": seen}


@contextmanager
def count_saved(model: nn.Module) -> Iterator[dict[int, Tensor]]:
    """What autograd saves: one tensor for each storage, without parameters."""
    held = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if (address := tensor.untyped_storage().data_ptr()) not in held:
            saved[address] = tensor  # kept alive, so that no other gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def measure_saved(model: Encoder, loss: Callable[[], Tensor]) -> int:
    with count_saved(model) as saved:
        loss()
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def measure_activations(
    config: ModelConfig, stack: Any, batch: int, n_tokens: int, dtype: Any
) -> int:
    model = stack(config).to(dtype)
    ids, targets = make_ids(config, batch, n_tokens), make_ids(config, batch, n_tokens)
    return measure_saved(model, lambda: model.loss(ids, targets))


def expected_activations(config, stack, batch, n_tokens, dtype, **settings) -> int:
    return activation_bytes(
        config,
        n_tokens,
        batch,
        causal=stack.causal,
        itemsize=dtype.itemsize,
        device="cpu",
        **settings,
    ).total


@each_config
@pytest.mark.parametrize(("batch", "n_tokens"), [(1, 9), (3, 5)])
@each_stack
def test_activations_by_kernel_equal_what_autograd_saves(config, batch, n_tokens, stack):
    run = (config, stack, batch, n_tokens, torch.float32)
    saved = measure_activations(*run)
    if config.rotary_fraction < 1:  # rotated halves lie otherwise, so heads are copied side by side
        saved -= config.n_layers * batch * n_tokens * config.d_model * 4
    assert saved == expected_activations(*run, fused=True)


@each_config
@each_stack
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_activations_by_definition_equal_what_autograd_saves(by_definition, config, stack, dropout):
    run = (replace(config, dropout=dropout), stack, 3, 5, torch.float64)
    saved = measure_activations(*run)
    if stack is Encoder and config.window is not None:  # one mask for all blocks
        saved += (config.n_layers - 1) * 5**2
    assert saved == expected_activations(*run, fused=False)


@each_config
def test_activations_in_half_precision(by_definition, config):
    run = (config, LanguageModel, 3, 5, torch.bfloat16)
    assert measure_activations(*run) == pytest.approx(
        expected_activations(*run, fused=False), rel=0.05
    )


@each_config
def test_checkpointing_keeps_the_inputs_of_blocks(by_definition, config):
    model, ids = LanguageModel(config), make_ids(config, 3, 5)
    kept = measure_saved(model, lambda: run_checkpointed(model, ids, use_reentrant=True))
    costs = activation_bytes(
        config, 5, 3, itemsize=8, checkpointing=True, fused=False, device="cpu"
    )
    assert kept == costs.total - costs["one block"]
    # What comes to its input while the block runs again is what it saves without checkpointing.
    block, x = LanguageModel(config).blocks[0], torch.randn(3, 5, 16, requires_grad=True)
    mask = near_mask(torch.arange(5), 0, config.window)
    again = measure_saved(block, lambda: block(x, mask, causal=True))
    assert again == costs["one block"] + x.nbytes


def test_block_in_half_precision_is_what_korthikanti_et_al_count():
    config = ModelConfig(10, d_model=64, n_heads=4, n_layers=1, activation="gelu", dropout=0.1)
    two = replace(config, n_layers=2)
    settings: dict[str, Any] = {"causal": False, "fused": False, "itemsize": 2}
    costs = [activation_bytes(each, 100, 3, **settings).total for each in (config, two)]
    tokens, d_model, heads = 300, 64, 4
    theirs = 34 * tokens * d_model + 5 * heads * tokens * 100
    # Ours have dropout inside the feed-forward network, too; they leave out mean and deviation.
    assert costs[1] - costs[0] == theirs + tokens * 4 * d_model + tokens * 2 * 2 * 4


def test_crossing_is_where_attention_has_as_many_operations():
    for config in CONFIGS.values():
        for name, others in (
            ("projections", ["projections"]),
            ("block", ["projections", "feed-forward"]),
            ("model", ["projections", "feed-forward", "output"]),
        ):
            n_tokens = crossing(config)[name]
            large = replace(config, n_layers=1) if name != "model" else config
            before, after = (forward_operations(large, int(n_tokens) + i) for i in (0, 1))
            assert before["attention"] <= sum(before[part] for part in others)
            assert after["attention"] > sum(after[part] for part in others)
    assert crossing(ModelConfig(1, d_model=768, n_heads=12)) == {
        "projections": 2 * 768,
        "block": 6 * 768,
        "model": 6 * 768 + 1 / 4,
    }


def test_crossing_of_a_causal_kernel_is_at_twice_the_tokens_less_one():
    n_tokens = 2 * int(crossing(BASE)["block"]) - 1
    costs = forward_operations(BASE, n_tokens, pairs="causal")
    assert costs["attention"] == costs["projections"] + costs["feed-forward"]


def test_numbers_that_are_known():
    gpt2 = ModelConfig(
        50257, d_model=768, n_heads=12, n_layers=12, max_tokens=1024, norm="pre",
        position="learned", activation="gelu_tanh", attention_bias=True,
    )  # fmt: skip
    assert parameters(gpt2).total == 124_439_808
    llama2 = replace(
        gpt2, vocab_size=32000, d_model=4096, n_heads=32, n_layers=32, d_ff=11008,
        attention_bias=False, **LLAMA,
    )  # fmt: skip
    assert parameters(llama2).total == 6_738_415_616
    assert cache_bytes(llama2, 4096, itemsize=2) == 2**31


def test_table():
    table = str(forward_operations(replace(BASE, n_layers=1), 1))
    assert table.splitlines()[:3] == [
        "part         operations    share",
        "embedding             0    0.0 %",
        "projections       2,048   51.2 %",
    ]
    assert str(Costs("bytes", {"cache": 0})).splitlines()[-1] == "total     0  0.0 %"


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("device", ["CPU", "gpu", "cuda:0"])
def test_another_device_is_not_taken_for_one_of_two(device):
    with pytest.raises(ValueError, match=f"device must be 'cpu' or 'cuda', got '{device}'"):
        activation_bytes(BASE, 3, device=device)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: parameters(TransformerConfig(10)), "one stack, got a TransformerConfig"),
        (lambda: parameters(replace(BASE, n_heads=5)), "divides 16, got 5"),
        (lambda: parameters(replace(BASE, n_kv_heads=3)), "divides 4 heads, got 3"),
        (lambda: forward_operations(BASE, -1), "at least 0, got -1"),
        (lambda: forward_operations(BASE, 3, n_seen=-2), "at least 0, got -2"),
        (lambda: forward_operations(BASE, 3, n_logits=4), "at most 3 tokens, got 4"),
        (lambda: cache_bytes(BASE, 3, -1), "at least 0, got -1"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(call, expected):
    with pytest.raises((TypeError, ValueError), match=f"^expected .*{expected}$"):
        call()
