"""What is converted computes the same function: same outputs, same gradients, same dropout."""

import copy
import functools
import inspect
import json
import math
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import keras
import peers
import pytest
import torch
import transformers
from peers import (
    BATCH,
    CONTEXT,
    D_FF,
    EXACT,
    FLOAT32,
    HEADS,
    KEYS,
    LLAMA3,
    MODELS,
    PARTS,
    ROPE,
    TOKENS,
    VOCAB,
    D,
    Peer,
    bert_module,
    gpt2_module,
    keras_attention,
    llama_module,
    randomize,
    torch_attention,
    torch_layer,
    x_attention,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.utils._python_dispatch import TorchDispatchMode
from x_transformers.x_transformers import Attention

from attnbook import (
    ALiBi,
    Block,
    BlockConfig,
    DecoderBlock,
    Encoder,
    LanguageModel,
    ModelConfig,
    MultiHeadAttention,
    Rotary,
    Transformer,
    causal_mask,
    combine_masks,
    convert,
    padding_mask,
)
from attnbook.tasks import bpe_tokenizer

# Keras 3.15.1 does not know the latest NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def assert_near(actual: Tensor, expected: Tensor, atol: float = EXACT) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def assert_equal_states(one: nn.Module, other: nn.Module, *without: str) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]) or any(w in name for w in without), name


class SameDropout(TorchDispatchMode):
    """Inside, the first dropout keeps the same entries in every library; so does the second, ….

    Only torch's draw is replaced, below all libraries, by one that goes by the order of the entries
    and not by how they lie in memory: where and how often they are dropped, and by what the others
    are divided, each library still says.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[int] = []  # how many entries each time

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not torch.ops.aten.bernoulli_.float:
            return function(*args, **(kwargs or {}))
        tensor, kept = (*args, 0.5)[:2]  # a half is the default, which does not arrive here
        self.drawn.append(tensor.numel())
        generator = torch.Generator().manual_seed(len(self.drawn))
        return tensor.copy_(torch.rand(tensor.shape, generator=generator) < kept)


def arguments(peer: Peer, kind: str) -> tuple[dict[str, Any], Tensor | None]:
    """One mask for ours and for theirs; every query may attend to the first key."""
    keys = TOKENS if peer.d_memory is None else KEYS
    mask = padding_mask(torch.tensor([keys - 3, keys]), keys) if "padding" in kind else None
    if "pattern" in kind:
        pattern = (torch.rand(TOKENS, keys) < 0.5) | (torch.arange(keys) == 0)
        mask = combine_masks(mask, pattern)
    causal = "causal" in kind and peer.d_memory is None
    allowed = combine_masks(mask, causal_mask(TOKENS) if causal else None)
    if allowed is not None:
        allowed = allowed.expand(BATCH, 1, TOKENS, keys)
    if peer.options.get("decoder"):  # its own mask is always causal
        return {"memory_mask": mask}, allowed
    return {"mask": mask, "causal": causal}, allowed


MASKS = ["none", "padding", "causal", "padding and pattern"]


@pytest.mark.parametrize(("kind", "train"), [("none", False), *((kind, True) for kind in MASKS)])
@pytest.mark.parametrize("name", PARTS)
def test_same_outputs_gradients_and_dropout(name, kind, train):
    peer = PARTS[name]
    theirs = peer.new().train(train)
    ours, (options, allowed) = peer.there(theirs), arguments(peer, kind)
    assert ours.training is (train and "Keras" not in name)
    ours.train(train)
    shapes = [(BATCH, TOKENS, getattr(ours, "attention", ours).d_model)]
    if peer.d_memory is not None:
        shapes.append((BATCH, KEYS, peer.d_memory))
    own = [torch.randn(shape, requires_grad=True) for shape in shapes]
    other = [x.detach().clone().requires_grad_() for x in own]
    with SameDropout() as here:
        output = ours(*own, **options)
    with SameDropout() as there:
        expected = peer.run(theirs, allowed, *other)
    assert len(there.drawn) == (peer.drops if train else 0)
    assert here.drawn == there.drawn
    assert_near(output, expected, peer.atol)
    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction)
    for x, y in zip(own, other, strict=True):
        assert_near(x.grad, y.grad, peer.atol)
    # The gradient of a weight lies where the weight lies.
    twin = copy.deepcopy(theirs)
    with torch.no_grad():
        for parameter, original in zip(twin.parameters(), theirs.parameters(), strict=True):
            if original.grad is not None:
                parameter.copy_(original.grad)
    with patch("attnbook.convert.shared.measure"):  # which gradients need not pass
        gradients = peer.there(twin)
    for path, parameter in ours.named_parameters():
        assert_near(parameter.grad, gradients.get_parameter(path), peer.atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*PARTS, *MODELS])
def test_there_and_back_again(name, dtype):
    peer = (PARTS | MODELS)[name]
    theirs, fresh = peer.new(), peer.new()
    if "Keras" in name:  # which keeps its type
        fresh.set_weights(peer.back(peer.there(theirs)))
        for one, other in zip(fresh.get_weights(), theirs.get_weights(), strict=True):
            assert (one == other).all()
        return
    theirs, fresh = theirs.to(dtype), fresh.to(dtype)
    ours = peer.there(theirs)
    back = peer.back(ours)
    assert {p.dtype for p in ours.parameters()} == {dtype}
    if isinstance(back, nn.Module):
        assert type(back) is type(theirs)
        assert str(back) == str(theirs)  # sizes, dropout, epsilon
        fresh = back
    else:
        fresh.load_state_dict(back, strict="BERT" not in name)
    # BertAttention's norm is outside of ours, BERT's first token type inside our positions.
    outside = {"BERT": ["token_type", "position_emb"], "BERT layer": []}
    without = outside.get(name, ["output.LayerNorm"] if "BERT" in name else [])
    assert_equal_states(theirs, fresh, *without)


@pytest.mark.parametrize("name", [*PARTS, *MODELS])
def test_the_peer_is_left_as_it_was(name):
    peer = (PARTS | MODELS)[name]
    theirs = peer.new().train()
    next(theirs.children()).eval()
    modes = [module.training for module in theirs.modules()]
    held = [*theirs.parameters(), *theirs.buffers()]
    before = [tensor.detach().clone() for tensor in held]
    generator = torch.get_rng_state()
    ours = peer.there(theirs)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in theirs.modules()] == modes
    assert all(map(torch.equal, [*theirs.parameters(), *theirs.buffers()], before))
    assert all(p.grad is None for p in [*theirs.parameters(), *ours.parameters()])
    memory = {p.untyped_storage().data_ptr() for p in held}
    assert memory.isdisjoint(p.untyped_storage().data_ptr() for p in ours.parameters())


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_same_logits(name, padded, train):
    peer = MODELS[name]
    theirs = peer.new().train(train)
    ours, ids = peer.there(theirs), torch.randint(VOCAB, (BATCH, TOKENS))
    assert not ours.training
    ours.train(train)
    real = None
    if padded and "nano" not in name:
        real = padding_mask(torch.tensor([TOKENS, 3]), TOKENS)[:, 0, 0]
    with SameDropout() as here:
        logits = ours(ids, padding_mask=real)
    with SameDropout() as there:
        expected = peer.run(theirs, real, ids)
    assert here.drawn == there.drawn
    assert len(there.drawn) == (peer.drops if train else 0)
    kept = slice(None) if real is None else real
    assert_near(logits[kept], expected[kept], peer.atol)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "bias": False}])
def test_torchs_transformer(options):
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 3, "dim_feedforward": 9}
    settings = {"dropout": 0.3, "layer_norm_eps": 1e-3, "batch_first": True}
    theirs = randomize(nn.Transformer(D, HEADS, **sizes, **settings, **options)).eval()
    ours = convert.from_torch(theirs, vocab_size=VOCAB)
    assert isinstance(ours, Transformer)
    assert not ours.training
    source, target, ahead = torch.randn(2, 7, D), torch.randn(2, 5, D), ~causal_mask(5)
    expected = theirs(source, target, tgt_mask=ahead)
    assert_near(ours.decode_vectors(target, ours.encode_vectors(source)), expected)
    assert ours(torch.randint(VOCAB, (2, 5)), torch.randint(VOCAB, (2, 4))).shape == (2, 4, VOCAB)
    back = convert.to_torch(ours)
    assert_near(back(source, target, tgt_mask=ahead), expected)
    assert_equal_states(back, theirs)
    assert str(back) == str(theirs)


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("name", [name for name in MODELS if name[0] in "GLB"])
def test_folders_are_read_without_transformers(name, sharded, tmp_path, monkeypatch):
    theirs, ids = MODELS[name].new().eval(), torch.randint(VOCAB, (BATCH, CONTEXT))
    theirs.save_pretrained(tmp_path, max_shard_size="5KB" if sharded else "5GB")
    assert (tmp_path / "model.safetensors").exists() is not sharded
    monkeypatch.setitem(sys.modules, "transformers", None)
    ours = convert.from_pretrained(tmp_path)
    assert_near(ours(ids), theirs(ids).logits, MODELS[name].atol)
    assert not ours.training
    ours.save(tmp_path / "ours.safetensors")
    assert_near(type(ours).load(tmp_path / "ours.safetensors")(ids), ours(ids))


def test_a_folder_may_hold_the_stack_alone(tmp_path):
    theirs, ids = MODELS["GPT-2"].new().eval(), torch.randint(VOCAB, (BATCH, TOKENS))
    theirs.transformer.save_pretrained(tmp_path)  # names without "transformer."
    assert_near(convert.from_pretrained(tmp_path)(ids), theirs(ids).logits)


BLOCK = {"d_model": D, "n_heads": HEADS, "d_ff": D_FF}
GPT2_LIKE = {"norm": "pre", "scaled": False, "position": "learned"}
GPT2_MODEL, LLAMA_MODEL = {"kind": "GPT2LMHeadModel"}, {"kind": "LlamaForCausalLM"}
MASKED = {"kind": "BertForMaskedLM"}
DYNAMIC = {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 2.0}}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (bert_module, MASKED | {"is_decoder": True}, "has is_decoder=True, ours has False only"),
        (bert_module, MASKED | {"hidden_act": "silu"}, "of relu, gelu, .* got 'silu'"),
        (bert_module, {"kind": "BertModel"}, "no head for masked words, cls.predictions or"),
        (bert_module, {"kind": "BertForTokenClassification"}, "no head for masked words"),
        (gpt2_module, GPT2_MODEL | {"scale_attn_weights": False}, "has scale_attn_weights=False"),
        (gpt2_module, GPT2_MODEL | {"activation_function": "tanh"}, "of relu, .* got 'tanh'"),
        (llama_module, LLAMA_MODEL | {"hidden_act": "gelu"}, "of silu, gelu_new, .* got 'gelu'"),
        (llama_module, LLAMA_MODEL | DYNAMIC, "of default, linear, llama3, yarn, got 'dynamic'"),
    ],
)
def test_folders_that_are_refused(make, options, message, tmp_path):
    make(**options).save_pretrained(tmp_path)
    assert_refused(tmp_path, message)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 9}
YARN |= {"rope_theta": 50.0}
SCALES = {"mscale": 2.0, "mscale_all_dim": 0.5}


def small(kind: str, **options: Any) -> Any:
    """A Mistral, Qwen2, … of transformers."""
    sizes = {"hidden_size": 16, "num_attention_heads": HEADS, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 11, "num_hidden_layers": 2, "max_position_embeddings": CONTEXT}
    settings = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**(sizes | settings | options))
    return randomize(getattr(transformers, f"{kind}ForCausalLM")(config)).eval()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Mistral", {"sliding_window": 5, "rope_parameters": dict(ROPE), "rms_norm_eps": 1e-2}),
        ("Mistral", {"sliding_window": None, "head_dim": 6, "tie_word_embeddings": True}),
        ("Qwen2", {"rope_parameters": dict(ROPE)}),
        ("Qwen2", {"tie_word_embeddings": True}),
        ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
        ("Llama", {"rope_parameters": YARN | {"beta_fast": 3.0, "beta_slow": 0.5}}),
        ("Qwen3", {"head_dim": 8, "rope_parameters": YARN | {"attention_factor": 1.5}}),
        ("Qwen2", {"rope_parameters": YARN | {"truncate": False, "factor": 0.5}}),
        ("Mistral", {"head_dim": 8, "rope_parameters": YARN | SCALES}),
        ("Gemma", {"head_dim": 6, "rope_parameters": dict(ROPE)}),
        ("Gemma", {"head_dim": 4, "tie_word_embeddings": False}),
        ("Gemma", {"head_dim": 4, "hidden_act": "silu", "attention_bias": True}),
        ("Qwen3", {"head_dim": 6, "rms_norm_eps": 1e-2}),
        ("Qwen3", {"head_dim": 4, "attention_bias": True, "tie_word_embeddings": True}),
    ],
)
def test_folders_and_modules_like_llamas(kind, options, tmp_path):
    theirs, ids = small(kind, **options), torch.randint(VOCAB, (BATCH, CONTEXT))
    theirs.save_pretrained(tmp_path)
    ours = convert.from_pretrained(tmp_path)
    assert_near(ours(ids), theirs(ids).logits, FLOAT32)
    ours.save(tmp_path / "ours.safetensors")
    assert_near(LanguageModel.load(tmp_path / "ours.safetensors")(ids), ours(ids))
    assert_equal_states(convert.from_llama(theirs), ours)
    if kind == "Qwen3":
        again = small(kind, **options)
        again.load_state_dict(convert.to_llama(ours))
        assert_equal_states(again, theirs)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("BertForMaskedLM", {"tie_word_embeddings": False, "hidden_act": "gelu_new"}),
        ("BertForPreTraining", {"type_vocab_size": 3}),
        ("RobertaForMaskedLM", {"layer_norm_eps": 1e-3}),
        ("RobertaForMaskedLM", {"tie_word_embeddings": False, "pad_token_id": 0}),
        ("RobertaForMaskedLM", {"type_vocab_size": 1, "pad_token_id": 4}),
    ],
)
def test_folders_of_models_for_masked_words(kind, options, padded, tmp_path):
    sizes = {"hidden_size": D, "num_attention_heads": HEADS, "intermediate_size": 11}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": CONTEXT, "vocab_size": VOCAB}
    config = getattr(transformers, f"{kind.partition('For')[0]}Config")(**(sizes | options))
    theirs = randomize(getattr(transformers, kind)(config)).eval()
    theirs.save_pretrained(tmp_path)
    ours = convert.from_pretrained(tmp_path)
    assert type(ours) is Encoder
    first = config.pad_token_id + 1
    n = ours.config.max_tokens
    assert n == CONTEXT - (first if "Roberta" in kind else 0)
    ids, real = torch.randint(first, VOCAB, (BATCH, n)), torch.ones(BATCH, n, dtype=torch.bool)
    if padded:
        real = padding_mask(torch.tensor([n, 3]), n)[:, 0, 0]
        ids = ids.where(real, config.pad_token_id)
    expected = theirs(ids, attention_mask=real.long())[0]
    logits = ours(ids, padding_mask=real if padded else None)
    assert_near(logits[real], expected[real], FLOAT32)


def test_names_of_old_bert_folders_are_read(tmp_path):
    theirs, ids = MODELS["BERT"].new().eval(), torch.randint(VOCAB, (BATCH, CONTEXT))
    theirs.save_pretrained(tmp_path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = {"bert.embeddings.position_ids": torch.arange(CONTEXT)[None]}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        stem = next((new for new in old if name.endswith(new)), "")
        state[name.removesuffix(stem) + old.get(stem, "")] = tensor
    assert "bert.embeddings.LayerNorm.gamma" in state
    save_file(state, tmp_path / "model.safetensors")
    assert_near(convert.from_pretrained(tmp_path)(ids), theirs(ids).logits)


SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 11, "vocab_size": VOCAB}
SIZES |= {"num_hidden_layers": 2}
KEY_SIZES = {"num_key_value_heads": 2, "head_dim": 6}
GPT2_SIZES = {"n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 24, "vocab_size": VOCAB}
BARE = {
    "GPT2LMHeadModel": GPT2_SIZES,
    **{f"{name}ForCausalLM": SIZES | KEY_SIZES for name in ("Llama", "Gemma", "Mistral", "Qwen3")},
    "Qwen2ForCausalLM": SIZES | {"num_key_value_heads": 2},
    **{
        f"{name}ForMaskedLM": SIZES | {"max_position_embeddings": 24}
        for name in ("Bert", "Roberta")
    },
}


@pytest.mark.parametrize("kind", BARE)
def test_what_config_json_does_not_say_is_the_familys_own_default(kind, tmp_path):
    made = getattr(transformers, kind)
    made(made.config_class(**BARE[kind])).save_pretrained(tmp_path)
    bare = {"model_type": made.config_class.model_type} | BARE[kind]
    (tmp_path / "config.json").write_text(json.dumps(bare))
    theirs, ids = made.from_pretrained(tmp_path), torch.randint(2, VOCAB, (BATCH, TOKENS))
    config = theirs.config
    ours = convert.from_pretrained(tmp_path)
    assert_near(ours(ids), theirs(ids).logits, FLOAT32)
    table = 2 if "Roberta" in kind else 0  # rows that are not ours
    assert ours.config.max_tokens == config.max_position_embeddings - table
    assert ours.config.window == (4096 if "Mistral" in kind else None)
    dropout = next(getattr(config, k) for k in DROPOUTS if hasattr(config, k))
    assert ours.blocks[0].attention.dropout == dropout
    for key in ("num_key_value_heads", "head_dim", "hidden_size", "n_layer"):  # the files know
        (tmp_path / "config.json").write_text(json.dumps({k: bare[k] for k in bare if k != key}))
        assert torch.equal(convert.from_pretrained(tmp_path)(ids), ours(ids))


DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


def test_gemmas_gelu_was_never_the_exact_one(tmp_path):
    theirs, ids = small("Gemma", head_dim=4), torch.randint(VOCAB, (BATCH, CONTEXT))
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"gelu_pytorch_tanh"', '"gelu"'))
    assert transformers.AutoConfig.from_pretrained(tmp_path).hidden_act == "gelu_pytorch_tanh"
    assert_near(convert.from_pretrained(tmp_path)(ids), theirs(ids).logits, FLOAT32)


def test_a_stack_alone_and_subclasses_are_read():
    theirs, ids = MODELS["GPT-2"].new().eval(), torch.randint(VOCAB, (BATCH, TOKENS))
    assert_near(convert.from_gpt2(theirs.transformer)(ids), theirs(ids).logits)

    class Mine(type(theirs)):
        pass

    theirs.__class__ = Mine
    assert_near(convert.from_gpt2(theirs)(ids), theirs(ids).logits)


# Folders that do not hold what config.json says. These are written by our own to_llama and to_gpt2.


def llama_folder(folder: Path, *, tied: bool = False, **config: Any) -> Path:
    built = {"norm": "pre", "scaled": False, "position": "rotary", "activation": "swiglu"}
    built |= {"norm_kind": "rms", "feed_forward_bias": False, "norm_bias": False}
    built |= {"d_model": 16, "n_heads": 2}
    model = LanguageModel(ModelConfig(50, n_kv_heads=1, d_ff=11, tied=tied, **built))
    state = convert.to_llama(model)
    if tied:
        del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors")
    known = {"model_type": "llama", "num_attention_heads": 2, "hidden_size": 16}
    known |= {"num_key_value_heads": 1, "tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(known | config))
    return folder


def gpt2_folder(folder: Path, **config: Any) -> Path:
    options = GPT2_LIKE | {"activation": "gelu_tanh", "max_tokens": CONTEXT}
    state = convert.to_gpt2(LanguageModel(ModelConfig(50, d_model=16, n_heads=2, **options)))
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2} | config))
    return folder


def assert_refused(folder: Path | str, message: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=message):
        convert.from_pretrained(folder)


LINEAR_ROPE = {"rope_type": "linear", "factor": 4.0}


LLAMA_DIFFERS = [
    ({"num_hidden_layers": 8}, "num_hidden_layers=8, the files hold 2"),
    ({"vocab_size": 32000}, "vocab_size=32000, the files hold 50"),
    ({"hidden_size": 32}, "hidden_size=32, the files hold 16"),
    ({"intermediate_size": 64}, "intermediate_size=64, the files hold 11"),
    ({"num_key_value_heads": 2}, "num_key_value_heads=2, the files hold 1"),
    ({"head_dim": 4}, "head_dim=4, the files hold 8"),
    ({"attention_bias": True}, "attention_bias=True, the files hold False"),
    ({"mlp_bias": True}, "mlp_bias=True, the files hold False"),
    ({"tie_word_embeddings": True}, "=True, the files hold an output layer of its own"),
    ({"num_attention_heads": 0}, "num_attention_heads must be a positive number, got 0"),
    ({"num_attention_heads": None}, "the configuration has no num_attention_heads"),
    ({"num_attention_heads": 2.0}, "num_attention_heads must be a whole number, got 2.0"),
    ({"num_key_value_heads": 0}, "num_key_value_heads=0, the files hold 1"),
    ({"head_dim": 0}, "head_dim=0, the files hold 8"),
    ({"rms_norm_eps": -1e-6}, "rms_norm_eps must be a positive number, got -1e-06"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a positive number, got '1e-6'"),
    ({"max_position_embeddings": -1}, "max_position_embeddings must be a positive number"),
    ({"attention_dropout": 1.5}, "attention_dropout must be a probability below 1, got 1.5"),
    ({"rope_theta": 0}, "rope_theta must be a positive number, got 0"),
    ({"rope_theta": math.inf}, "rope_theta must be a positive number, got inf"),
    ({"rope_scaling": "linear"}, "rope_scaling must be options by name, got 'linear'"),
    ({"rope_scaling": {"type": "linear"}}, "has rope_type='linear' without factor"),
    ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor must be a positive number"),
    ({"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, "'llama3' without low_freq_factor"),
    ({"rope_parameters": {"full_attention": LINEAR_ROPE}}, "must be options by name, got {'full_"),
    ({"rope_scaling": {"type": "longrope"}}, "of default, linear, llama3, yarn, got 'longrope'"),
    ({"rope_scaling": {"type": "yarn"}}, "has rope_type='yarn' without factor"),
    (
        {"rope_scaling": LINEAR_ROPE, "rope_parameters": LINEAR_ROPE | {"factor": 2.0}},
        "has rope_parameters.factor=2.0 and rope_scaling.factor=4.0",
    ),
    (
        {"rope_scaling": LINEAR_ROPE | {"type": "dynamic"}},
        "has rope_scaling.rope_type='linear' and rope_scaling.type='dynamic'",
    ),
    (
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
        "has rope_theta=10000.0 and rope_parameters.rope_theta=500000.0",
    ),
    (
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "has partial_rotary_factor=0.5, ours has 1.0 only",
    ),
    ({"model_type": "mistral", "sliding_window": 3, "hidden_act": "gelu"}, "got 'gelu'"),
    ({"model_type": "gemma", "use_bidirectional_attention": True}, "attention=True, ours has"),
    ({"model_type": "bloom"}, "got 'bloom'; the parts of a model that transformers has loaded"),
    ({"model_type": "gemma2"}, "got 'gemma2', with norms after its sublayers and soft-capped"),
    ({"model_type": "qwen2", "use_sliding_window": True}, "has use_sliding_window=True"),
    ({"model_type": "qwen3", "use_sliding_window": True}, "has use_sliding_window=True"),
    ({"is_causal": False}, "has is_causal=False, ours has True only"),
]
GPT2_DIFFERS = [
    ({"n_layer": 12}, "n_layer=12, the files hold 2"),
    ({"n_embd": 768}, "n_embd=768, the files hold 16"),
    ({"n_inner": 32}, "n_inner=32, the files hold 64"),
    ({"n_positions": 1024}, "n_positions=1024, the files hold 24"),
    ({"vocab_size": 50257}, "vocab_size=50257, the files hold 50"),
    ({"n_head": None}, "the configuration has no n_head"),
    ({"is_causal": False}, "has is_causal=False, ours has True only"),
    ({"attn_pdrop": 1.0}, "attn_pdrop must be a probability below 1, got 1.0"),
]


@pytest.mark.parametrize(
    ("folder", "config", "message"),
    [
        *((llama_folder, *differs) for differs in LLAMA_DIFFERS),
        *((gpt2_folder, *differs) for differs in GPT2_DIFFERS),
    ],
)
def test_folders_that_do_not_hold_what_they_say(folder, config, message, tmp_path):
    assert convert.from_pretrained(folder(tmp_path)).config.n_layers == 2
    assert_refused(folder(tmp_path, **config), re.escape(message))


def test_the_output_layer_is_what_config_json_says(tmp_path):
    """An output layer that equals the embedding may be either; without one it is the embedding."""
    assert convert.from_pretrained(gpt2_folder(tmp_path)).config.tied
    apart = convert.from_pretrained(gpt2_folder(tmp_path, tie_word_embeddings=False))
    assert not apart.config.tied
    assert torch.equal(apart.output.weight, apart.embedding.weight)
    assert convert.from_pretrained(llama_folder(tmp_path, tied=True)).config.tied
    for said in (False, None):  # None: Llama's default
        folder = llama_folder(tmp_path, tied=True, tie_word_embeddings=said)
        assert_refused(folder, "=False, the files hold no output layer")
    state = load_file(gpt2_folder(tmp_path) / "model.safetensors")
    state["lm_head.weight"] = state["lm_head.weight"] + 1e-3
    save_file(state, tmp_path / "model.safetensors")
    assert_refused(tmp_path, "the files hold an output layer of its own")


def test_nan_in_the_embedding_stays(tmp_path):
    state = load_file(gpt2_folder(tmp_path) / "model.safetensors")
    for name in ("lm_head.weight", "transformer.wte.weight"):
        state[name][3] = torch.nan
    save_file(state, tmp_path / "model.safetensors")
    assert convert.from_pretrained(tmp_path).embedding.weight[3].isnan().all()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_compiled_and_parallel_models_are_dropped(prefix, tmp_path):
    state = load_file(llama_folder(tmp_path) / "model.safetensors")
    save_file({prefix + n: x for n, x in state.items()}, tmp_path / "model.safetensors")
    assert torch.equal(
        convert.from_pretrained(tmp_path).embedding.weight, state["model.embed_tokens.weight"]
    )
    model = LanguageModel(
        ModelConfig(**GPT2_LIKE, vocab_size=9, activation="gelu", attention_bias=True)
    )
    weights = {prefix + name: x for name, x in convert.to_nanogpt(model).items()}
    checkpoint = {"model": weights, "model_args": {"n_head": 4}, "iter_num": 7}
    for state in (weights, checkpoint):
        assert_equal_states(convert.from_nanogpt(state, 4), model)
    with pytest.raises(ValueError, match="has n_head=4, got n_heads=2"):
        convert.from_nanogpt(checkpoint, 2)


def sharded(folder: Path, *files: list[str]) -> None:
    """The parameters in several files, each with these names, beside an index of all of them."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {}
    for i, names in enumerate(files):
        file = f"model-{i + 1:05}-of-{len(files):05}.safetensors"
        save_file({name: state[name] for name in names}, folder / file)
        places |= dict.fromkeys(names, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))


def test_only_one_save_counts(tmp_path):
    names = list(load_file(llama_folder(tmp_path) / "model.safetensors"))
    expected = convert.from_pretrained(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    sharded(tmp_path, names[:4], names[4:])
    stale = tmp_path / "model-00003-of-00003.safetensors"
    save_file({names[0]: torch.zeros(2)}, stale)  # of another save, which no index names
    assert_equal_states(convert.from_pretrained(tmp_path), expected)
    (tmp_path / "model.safetensors").write_bytes(whole)
    assert_refused(tmp_path, r"two saves, model.safetensors and model.safe.*index")
    (tmp_path / "model.safetensors").unlink()
    stale.rename(tmp_path / "model-00002-of-00002.safetensors")
    assert_refused(tmp_path, r"model-00002-of-00002.*index.json differ in .* and \d+ more")


def test_files_that_are_not_what_they_should_be(tmp_path):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for name in ("model.safetensors", "config.json"):
        (llama_folder(tmp_path) / name).write_text(pointer)
        assert_refused(tmp_path, f"{name} is a pointer of git-lfs: run `git lfs pull`")
    for name, text in {"model.safetensors": "12", "config.json": "{"}.items():
        (llama_folder(tmp_path) / name).write_text(text)
        assert_refused(tmp_path, f"{name} is not")
    (llama_folder(tmp_path) / "config.json").write_text("[]")
    assert_refused(tmp_path, r"config.json must hold options by name, got a list")
    whole = llama_folder(tmp_path) / "model.safetensors"
    whole.rename(tmp_path / "pytorch_model.bin")
    assert_refused(tmp_path, r"no .*model.safetensors; .* is a pickle", FileNotFoundError)
    for missing in ("openai-community/gpt2", "https://huggingface.co/gpt2", tmp_path / "x"):
        assert_refused(missing, r"no folder .*: nothing is downloaded", FileNotFoundError)
    state = convert.to_llama(MultiHeadAttention(16, 2, position=Rotary()))
    save_file({f"model.layers.0.self_attn.{n}": x for n, x in state.items()}, whole)
    assert_refused(tmp_path, r"the files hold no embedding.weight and no blocks.0.feed")


def test_a_tokenizer_comes_with_its_folder(tmp_path):
    words = bpe_tokenizer("low lower lowest " * 20, 260)
    words.add_special_tokens(["<end>"])
    with pytest.raises(FileNotFoundError, match=r"no .*tokenizer.json: .* save_pretrained"):
        convert.tokenizer(llama_folder(tmp_path, vocab_size=261))
    words.save(str(tmp_path / "tokenizer.json"))
    ids = convert.tokenizer(tmp_path).encode("lowest owl<end>").ids
    assert ids == words.encode("lowest owl<end>").ids
    assert ids[-1] == 260
    llama_folder(tmp_path, vocab_size=260)
    with pytest.raises(ValueError, match=r"has 261 tokens, config.json has vocab_size=260"):
        convert.tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer: "):
        convert.tokenizer(tmp_path)


def test_a_difference_in_a_small_feature_is_found():
    theirs = torch_attention(bias=False)
    with torch.no_grad():
        theirs.out_proj.weight[0] *= 1e3
    assert torch.equal(convert.from_torch(theirs).output.weight, theirs.out_proj.weight)
    theirs.__class__ = MultiheadOff
    with pytest.raises(ValueError, match=r"MultiheadOff computes another function: off by 0.001"):
        convert.from_torch(theirs)


class MultiheadOff(nn.MultiheadAttention):
    """The second feature of the output is off by a thousandth; the first is much larger."""

    def forward(self, *given: Any, **options: Any) -> Any:
        output, weights = super().forward(*given, **options)
        return output + 1e-3 * (torch.arange(D) == 1), weights


# What another library has and ours has not


def changed(path: str, value: Any, make: Any, **options: Any) -> nn.Module:
    module = make(**options)
    owner, _, name = path.rpartition(".")
    setattr(module.get_submodule(owner), name, value)
    return module


def pruned() -> nn.Module:
    layer = torch_layer(decoder=True)
    prune.random_unstructured(layer.linear1, "bias", amount=1)
    return layer


def parametrized() -> nn.Module:
    module = torch_attention()
    parametrize.register_parametrization(module.out_proj, "weight", nn.Tanh())
    return module


OFF, LESS = r"computes another function: off by [\d.e-]+ on 16 random tokens", "a counterpart: "
REPLACED = {"path": "norm1", "value": nn.LayerNorm(D, bias=False), "make": torch_layer}
FREQUENCIES = {"path": "model.rotary_emb.inv_freq", "value": torch.tensor([1.0, 0.0447])}
SCALE = {"path": "scaling", "value": 1.0}
REFUSED = [
    (torch_attention, {"add_zero_attn": True}, f"^MultiheadAttention {OFF}"),
    (torch_attention, {"add_bias_kv": True}, f"{LESS}bias_k, bias_v"),
    (torch_attention, {"kdim": 10, "vdim": 7}, "size mismatch for value.weight"),
    (torch_layer, {"activation": torch.tanh}, "activation must be relu, gelu, .* tanh"),
    (torch_layer, {"activation": nn.GELU("tanh")}, "gradients .* gelu, with them gelu_tanh"),
    (pruned, {}, "Unexpected key.*inner.bias_orig"),
    (parametrized, {}, f"{LESS}out_proj.parametrizations"),
    (changed, REPLACED, "Missing key.*attention_residual.norm.bias"),
    (gpt2_module, {"kind": "GPT2Attention", "scale_attn_weights": False}, f"GPT2Attention {OFF}"),
    (gpt2_module, GPT2_MODEL | {"scale_attn_by_inverse_layer_idx": True}, f"GPT2LMHeadModel {OFF}"),
    (gpt2_module, {"kind": "GPT2Block", "add_cross_attention": True}, f"{LESS}crossattention"),
    (
        changed,
        {"path": "self.scaling", "value": 1.0, "make": bert_module, "kind": "BertAttention"},
        f"BertAttention {OFF}",
    ),
    (bert_module, {"kind": "BertForMaskedLM", "is_decoder": True}, f"BertForMaskedLM {OFF}"),
    (llama_module, {"kind": "LlamaDecoderLayer", "hidden_act": "gelu"}, "hidden_act must be one"),
    (changed, SCALE | {"make": llama_module, "kind": "LlamaAttention"}, f"LlamaAttention {OFF}"),
    (llama_module, LLAMA_MODEL | DYNAMIC, "of default, linear, llama3, yarn, got 'dynamic'"),
    (changed, FREQUENCIES | LLAMA_MODEL | {"make": llama_module}, "has other frequencies"),
    (
        changed,
        {"path": "_inverse_sqrt_key_dim", "value": 1.0, "make": keras_attention},
        f"MultiHeadAttention {OFF}",
    ),
    (keras_attention, {"sliding_window": 3}, f"MultiHeadAttention {OFF}"),
    (keras_attention, {"sliding_window": 20}, "no sliding_window of its own, got 20"),
    (keras_attention, {"dtype": "mixed_bfloat16"}, f"MultiHeadAttention {OFF}"),
    (keras_attention, {"use_gate": True}, "expected 4 kernels"),
    (keras_attention, {"output_shape": 5}, "size mismatch"),
    (keras.layers.MultiHeadAttention, {"num_heads": 2, "key_dim": 3}, "4 kernels .* got \\[\\]"),
    (x_attention, {"zero_init_output": True}, "can't be measured .*the same output for all"),
    (x_attention, {"max_attend_past": 16}, "16 tokens don't show: {'max_attend_past': 16}"),
    (x_attention, {"sparse_topk": 16, "flash": False}, "don't show: {'sparse_topk': 16}"),
]


@pytest.mark.parametrize(("make", "options", "message"), REFUSED)
def test_another_function_is_refused(make, options, message):
    """With the weights that the library draws, in which differences are small."""
    module = make(**options)
    libraries = {"torch": convert.from_torch, "keras": convert.from_keras}
    libraries |= {"gpt2": convert.from_gpt2, "llama": convert.from_llama, "bert": convert.from_bert}
    libraries |= {"x_transformers": convert.from_x_transformers}
    parts = type(module).__module__.split(".")
    there = next(f for name, f in libraries.items() if name in parts)
    with pytest.raises(ValueError, match=message):
        there(module)


# Every option of x-transformers is refused, without being known by name, or has no effect.

X_REFUSED_FLAGS = (
    "pre_talking_heads post_talking_heads pre_scale_post_talking_heads head_scale on_attn "
    "gate_value_heads gate_values output_gate hard qk_norm qk_rmsnorm k_rmsnorm l2_distance "
    "sigmoid gumbel_softmax selective cog_signed add_zero_kv head_learned_sink use_cope laser "
    "data_dependent_alibi use_rel_proj_pos_bias softclamp_logits learned_value_residual_mix "
    "orthog_projected_values orthog_projected_values_per_head qkv_receive_diff_residuals "
    "use_latent_q use_latent_kv inverted_attention value_rmsnorm"
)
X_FLAGS = (
    "sparse_topk_straight_through swiglu_values output_gate_headwise qk_norm_dim_scale causal "
    "hybrid_learned_mix data_dependent_alibi_per_row cope_soft_onehot_pos cope_talking_heads "
    "onnxable project_out"
)
X_NUMBERS = (
    "gate_values_rank output_gate_rank qk_norm_groups qk_norm_scale gumbel_softmax_temp "
    "hybrid_fold_axial_dim data_dependent_alibi_per_row_dim_head rel_proj_num_distance_basis "
    "rel_proj_max_dist cope_max_pos logit_softclamp_value laser_softclamp_value dim_latent_q "
    "dim_latent_kv output_proj_depth"
)
X_REFUSED = dict.fromkeys(X_REFUSED_FLAGS.split(), True)
X_REFUSED |= {"sparse_topk": 2, "num_mem_kv": 3, "sublayer_dropout": 0.1, "max_attend_past": 0}
X_REFUSED |= {"custom_attn_fn": functools.partial(torch.softmax, dim=-2), "dim_out": 5}
X_REFUSED |= {"hybrid_module": nn.Linear(D, 24), "latent_rope_subheads": 2}
X_NEEDS = {name: {"causal": True} for name in ("selective", "use_cope", "data_dependent_alibi")}
X_NEEDS |= {"use_latent_q": {"dim_latent_q": 8}, "use_latent_kv": {"dim_latent_kv": 8}}
X_WITHOUT_EFFECT = dict.fromkeys(X_FLAGS.split(), True) | dict.fromkeys(X_NUMBERS.split(), 3)
X_WITHOUT_EFFECT |= {"gate_values_headwise": False, "low_rank_silu_gates": False}
X_WITHOUT_EFFECT |= {"gumbel_softmax_hard": False, "flash_pack_seq": False, "rotate_num_heads": 3}
X_WITHOUT_EFFECT |= {"hybrid_mask_kwarg": "mask", "data_dependent_alibi_kwargs": {}}
X_WITHOUT_EFFECT |= {"attend_sdp_kwargs": {"enable_math": True}}
X_TESTED = {"dim", "dim_head", "dim_context", "heads", "flash", "dropout", "one_kv_head"}
X_TESTED |= {"kv_heads", "value_dim_head", "zero_init_output"}


def test_every_option_is_in_one_of_the_lists():
    known = X_REFUSED.keys() | X_WITHOUT_EFFECT.keys() | X_TESTED
    assert set(inspect.signature(Attention).parameters) == known


@pytest.mark.parametrize("option", X_REFUSED)
def test_options_of_x_transformers_that_change_the_function(option):
    options = {option: X_REFUSED[option], "flash": False} | X_NEEDS.get(option, {})
    with pytest.raises(ValueError, match=f"Attention|size mismatch|{LESS}"):
        convert.from_x_transformers(x_attention(**options))


@pytest.mark.parametrize("option", X_WITHOUT_EFFECT)
def test_options_of_x_transformers_without_effect(option):
    theirs = x_attention(**{option: X_WITHOUT_EFFECT[option]}).eval()
    ours, x = convert.from_x_transformers(theirs), torch.randn(BATCH, TOKENS, D)
    assert_near(ours(x, causal=theirs.causal), theirs(x), FLOAT32)


# What ours has and another library has not

EVERYWHERE = ALiBi(bidirectional=True)
OPTIONS = (
    {"n_kv_heads": 2},
    {"d_head": 5},
    {"d_value": 5},
    {"d_memory": 5},
    {"position": EVERYWHERE},
    {"qk_norm": True},
)


@pytest.mark.parametrize(
    ("back", "options", "message"),
    [
        *(
            (back, options, f"needs {next(iter(options)).replace('qk', 'query')}=.*, got")
            for back in (convert.to_gpt2, convert.to_bert, convert.to_nanogpt)
            for options in OPTIONS
        ),
        (convert.to_torch, {"n_kv_heads": 2}, "size mismatch for in_proj_weight"),
        (convert.to_torch, {"d_head": 5}, "size mismatch for in_proj_weight"),
        (convert.to_torch, {"position": EVERYWHERE}, f"MultiheadAttention {OFF}"),
        (convert.to_llama, {"position": None}, r"Llama needs position=Rotary\(\), got None"),
        (convert.to_llama, {"d_value": 5, "position": Rotary(), "d_head": 4}, "d_value=4, got 5"),
        (convert.to_llama, {"position": Rotary(fraction=0.5), "d_head": 4}, "fraction=0.5"),
        (convert.to_keras, {"n_kv_heads": 2}, "needs n_kv_heads=4, got 2"),
        (convert.to_torch, {"qk_norm": True}, f"{LESS}query_norm.weight, key_norm.weight"),
        (convert.to_keras, {"position": EVERYWHERE}, "needs position=None"),
        (convert.to_keras, {"qk_norm": True}, "needs query_norm=None, got RMSNorm"),
        (convert.to_x_transformers, {"qk_norm": True}, "needs query_norm=None, got RMSNorm"),
        (convert.to_x_transformers, {"bias": "output"}, "has no biases, got output.bias"),
        (convert.to_x_transformers, {"position": EVERYWHERE}, "needs position=None"),
    ],
)
def test_our_attentions_that_do_not_fit(back, options, message):
    with pytest.raises(ValueError, match=message):
        back(MultiHeadAttention(D, HEADS, **options))


@pytest.mark.parametrize(
    ("back", "options", "message"),
    [
        (convert.to_torch, {"norm": "none"}, "Missing key.*norm1"),
        (convert.to_torch, {"scale": 2.0}, OFF),
        (convert.to_torch, {"activation": "swiglu"}, f"{LESS}feed_forward.gate"),
        (convert.to_bert, {"norm": "pre"}, "needs norm_position='post', got 'pre'"),
        (convert.to_bert, {"scale": 2.0}, "needs scale=1.0, got 2.0"),
        (convert.to_gpt2, {"norm": "pre", "norm_kind": "rms"}, "needs LayerNorm, got RMSNorm"),
        (convert.to_gpt2, {"vocab_size": 9}, "needs norm='pre', got 'post'"),
        (convert.to_gpt2, GPT2_LIKE | {"vocab_size": 9, "window": 4}, "needs window=None, got 4"),
        (convert.to_nanogpt, GPT2_LIKE | {"vocab_size": 9}, "needs activation='gelu', got 'relu'"),
        (convert.to_llama, {"vocab_size": 9}, "needs norm='pre', got 'post'"),
    ],
)
def test_our_blocks_and_models_that_do_not_fit(back, options, message):
    if "vocab_size" in options:
        ours = LanguageModel(ModelConfig(**options))
    else:
        scale = (choices := dict(options)).pop("scale", 1.0)
        ours = Block(BlockConfig(**BLOCK, **choices), residual_scale=scale)
    with pytest.raises(ValueError, match=message):
        back(ours)


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (Encoder(ModelConfig(9)), "needs scaled=False, got True"),
        (LanguageModel(ModelConfig(9)), "needs causal=False, got True"),
        (DecoderBlock(BlockConfig(**BLOCK)), f"{LESS}cross_attention"),
    ],
)
def test_what_is_not_berts(ours, message):
    with pytest.raises(ValueError, match=message):
        convert.to_bert(ours)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
def test_either_rotary_layout(layout, qk_norm):
    options = {"qk_norm": qk_norm, "norm_eps": 1e-6, "position": Rotary(layout, ROPE["rope_theta"])}
    ours = randomize(MultiHeadAttention(16, HEADS, n_kv_heads=2, **options))
    theirs, x = llama_module("LlamaAttention").eval(), torch.randn(BATCH, TOKENS, 16)
    if qk_norm:
        theirs = small("Qwen3", head_dim=4, rope_parameters=dict(ROPE)).model.layers[0].self_attn
    theirs.load_state_dict(convert.to_llama(ours))
    allowed = causal_mask(TOKENS).expand(BATCH, 1, TOKENS, TOKENS)
    assert_near(ours(x, causal=True), peers.run_llama(theirs, allowed, x), FLOAT32)


@pytest.mark.parametrize("bias", [False, "qkv", "output"])
@pytest.mark.parametrize("name", ["torch encoder layer", "BERT attention", "GPT-2 attention"])
def test_zeros_stand_where_ours_has_no_biases(name, bias):
    peer = PARTS[name]
    ours = Block(BlockConfig(**BLOCK, attention_bias=bias)) if "layer" in name else None
    ours = randomize(ours or MultiHeadAttention(D, HEADS, bias=bias)).eval()
    theirs, x = peer.back(ours), torch.randn(BATCH, TOKENS, D)
    if not isinstance(theirs, nn.Module):
        state, theirs = theirs, peer.new().eval()
        theirs.load_state_dict(theirs.state_dict() | state)
    assert_near(peer.run(theirs, None, x), ours(x))


def test_lists_of_keras_weights_and_bfloat16():
    ours = MultiHeadAttention(D, HEADS, bias=True)
    with torch.device("meta"):
        again = convert.from_keras(convert.to_keras(ours))
    assert_equal_states(again, ours)
    halves = convert.to_keras(ours.bfloat16())
    for half, whole in zip(halves, convert.to_keras(ours.float()), strict=True):
        assert half.dtype == "float32"
        assert (half == whole).all()


OF_A_MODULE = dict.fromkeys(p.there for p in PARTS.values() if p.there is not peers.from_nanogpt)


@pytest.mark.parametrize("there", OF_A_MODULE)  # in one order: two processes collect the tests
@pytest.mark.usefixtures("without_shape_checks")
def test_other_classes_are_refused(there):
    with pytest.raises(TypeError, match=r"expected .* got .*Linear"):
        there(nn.Linear(2, 2))


def test_nanogpts_causal_mask_is_not_a_parameter():
    state = peers.CausalSelfAttention(bias=False).state_dict()
    with_mask = convert.from_nanogpt(state | {"bias": torch.ones(1, 1, 8, 8).tril()}, HEADS)
    assert with_mask.output.bias is None
    with pytest.raises(ValueError, match=r"neither a c_attn.weight nor a transformer.wte"):
        convert.from_nanogpt({"c_proj.weight": state["c_proj.weight"]}, HEADS)


def test_the_factor_of_yarn_is_compared():
    theirs = llama_module("LlamaForCausalLM", rope_parameters=dict(YARN))
    theirs.model.rotary_emb.attention_scaling *= 1.0001  # which no 16 tokens show
    with pytest.raises(ValueError, match="LlamaRotaryEmbedding has other frequencies"):
        convert.from_llama(theirs)


def test_far_positions_of_llama_3_are_compared():
    sizes = {"head_dim": 16, "hidden_size": 64, "rope_parameters": LLAMA3}
    theirs = llama_module("LlamaForCausalLM", **sizes)
    assert convert.from_llama(theirs).blocks[0].attention.position.scaling.factor == 8
    theirs.model.rotary_emb.inv_freq[-1] *= 1.001  # which 16 tokens do not show
    with pytest.raises(ValueError, match="LlamaRotaryEmbedding has other frequencies"):
        convert.from_llama(theirs)
