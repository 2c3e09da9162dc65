import keras
import numpy as np
import pytest
import torch
from compare import (
    BATCH,
    CROSS_MASKS,
    DROPOUT,
    EXACT,
    KEYS,
    MASKS,
    TOKENS,
    assert_copied,
    assert_equal_parameters,
    assert_near,
    assert_same_function,
    each_pair,
    masks,
    randomize,
)
from torch import Tensor, nn

from attnbook import ALiBi, MultiHeadAttention
from attnbook.interop import from_keras, to_keras

N_HEADS, D_HEAD, D_VALUE, D_MODEL, D_MEMORY = 4, 5, 6, 12, 10


MODES = [(True, 0.0), (False, 0.0), (True, DROPOUT)]
"""Training, and what is dropped then."""

# Biases; asked for its scores, it takes another path.
OPTIONS = [True, False], MODES, [True, False], ["float64", "float32"]


def tolerance(dtype: str, explicit: bool) -> float:
    """Asked for its scores or dropping some, a layer in float64 computes in it; else in float32.

    ``keras.backend.result_type("float64", "float64")`` is float32, as in JAX, and the fused kernel
    is called in that type.
    """
    return EXACT if dtype == "float64" and explicit else 1e-5


Layer = keras.layers.MultiHeadAttention

# Keras 3.15.1 does not know the latest NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def attention(
    *, d_model: int = D_MODEL, d_memory: int = D_MEMORY, dtype: str = "float64", **options: object
) -> Layer:
    settings = {"num_heads": N_HEADS, "key_dim": D_HEAD, "value_dim": D_VALUE} | options
    layer = Layer(dtype=dtype, **settings)
    layer.build((None, None, d_model), (None, None, d_memory))
    return randomize(layer)


def test_keras_computes_with_torch() -> None:
    assert keras.backend.backend() == "torch"
    assert isinstance(attention(), nn.Module)


@pytest.mark.parametrize(
    ("mask", "use_bias", "mode", "scores", "dtype"), each_pair(MASKS, *OPTIONS)
)
def test_self_attention(
    mask: str, use_bias: bool, mode: tuple[bool, float], scores: bool, dtype: str
) -> None:
    training, dropout = mode
    theirs = attention(d_memory=D_MODEL, use_bias=use_bias, dropout=dropout, dtype=dtype)
    ours, m = from_keras(theirs).train(training), masks(mask, TOKENS)

    def run(x: Tensor) -> Tensor:
        padding = None if m.padding is None else m.padding[:, None]
        output = theirs(
            x,
            x,
            attention_mask=padding,
            use_causal_mask=m.causal,
            return_attention_scores=scores,
            training=training,
        )
        return output[0] if scores else output

    assert_same_function(
        ours,
        theirs,
        lambda x: ours(x, **m.ours()),
        run,
        [torch.randn(BATCH, TOKENS, D_MODEL, dtype=getattr(torch, dtype))],
        from_keras,
        tolerance(dtype, scores or dropout > 0),
        drops=int(dropout > 0),
    )


@pytest.mark.parametrize(
    ("mask", "use_bias", "mode", "scores", "dtype"), each_pair(CROSS_MASKS, *OPTIONS)
)
def test_cross_attention(
    mask: str, use_bias: bool, mode: tuple[bool, float], scores: bool, dtype: str
) -> None:
    training, dropout = mode
    theirs = attention(use_bias=use_bias, dropout=dropout, dtype=dtype)
    ours, m = from_keras(theirs).train(training), masks(mask, KEYS)

    def run(x: Tensor, memory: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        allowed = m.allowed(TOKENS, KEYS)
        return theirs(
            x,
            memory,
            attention_mask=None if allowed is None else allowed[:, 0],
            return_attention_scores=scores,
            training=training,
        )

    inputs = [
        torch.randn(BATCH, n, width, dtype=getattr(torch, dtype))
        for n, width in ((TOKENS, D_MODEL), (KEYS, D_MEMORY))
    ]
    assert_same_function(
        ours,
        theirs,
        lambda x, memory: ours(x, memory, **m.ours()),
        lambda x, memory: run(x, memory)[0] if scores else run(x, memory),
        inputs,
        from_keras,
        tolerance(dtype, scores or dropout > 0),
        drops=int(dropout > 0),
    )
    if scores and not dropout:  # theirs are from before dropout
        _, weights = ours(*inputs, **m.ours(), return_weights=True)
        assert_near(weights, run(*inputs)[1], tolerance(dtype, scores))


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_there_and_back_again(dtype: str, use_bias: bool) -> None:
    theirs, fresh = (attention(dtype=dtype, use_bias=use_bias, dropout=0.25) for _ in range(2))
    ours = from_keras(theirs)
    fresh.set_weights(to_keras(ours))
    for one, other in zip(fresh.get_weights(), theirs.get_weights(), strict=True):
        assert one.dtype == dtype
        assert np.array_equal(one, other)
    assert_copied(ours.parameters(), [variable.value for variable in theirs.weights])
    assert_copied(map(torch.from_numpy, to_keras(ours)), ours.parameters())
    assert (ours.dropout, ours.training) == (0.25, False)


@pytest.mark.parametrize("use_bias", [True, False])
def test_arrays_do_as_well_as_a_layer(use_bias: bool) -> None:
    theirs = attention(use_bias=use_bias)
    arrays = theirs.get_weights()
    ours = from_keras(arrays)
    assert_copied(ours.parameters(), map(torch.from_numpy, arrays))
    x, memory = torch.randn(BATCH, TOKENS, D_MODEL), torch.randn(BATCH, KEYS, D_MEMORY)
    expected, _ = theirs(x, memory, return_attention_scores=True)
    assert_near(ours(x, memory), expected)


def test_arrays_come_to_the_cpu_whatever_the_default_device() -> None:
    ours = MultiHeadAttention(D_MODEL, N_HEADS)
    with torch.device("meta"):
        again = from_keras(to_keras(ours))
    assert_equal_parameters(again, ours)


def test_a_kernel_for_speed_is_no_other_function() -> None:
    theirs = attention(flash_attention=True)  # it refuses to run on a CPU
    for name, tensor in from_keras(theirs).state_dict().items():
        assert torch.equal(tensor, from_keras(theirs.get_weights()).state_dict()[name])


def test_bfloat16_goes_by_way_of_float32() -> None:
    ours = MultiHeadAttention(D_MODEL, N_HEADS).bfloat16()
    for array, there in zip(to_keras(ours), to_keras(ours.float()), strict=True):
        assert array.dtype == np.float32
        assert (array == there).all()


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"use_gate": True}, r"\(use_gate=True\): "),
            ({"sliding_window": 3}, r"\(sliding_window=3\): "),
            ({"output_shape": 5}, r"\(output_shape=\(5,\)\): "),
            ({"output_shape": (2, 6)}, r"\(output_shape=\(2, 6\)\): "),
            ({"dtype": "mixed_bfloat16"}, r"\(dtype='bfloat16'\): "),
        ],
    )
    def test_options(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=f"keras.layers.MultiHeadAttention{message}"):
            from_keras(attention(**options))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, r"\(attention_axes=\(1, 2\)\): "),
            ({"attention_axes": 1}, r"\(input_rank=4\): "),
        ],
    )
    def test_more_axes(self, options: dict[str, int], message: str) -> None:
        theirs = Layer(N_HEADS, D_HEAD, **options)
        theirs.build((None, None, 2, D_MODEL), (None, None, 2, D_MODEL))
        with pytest.raises(ValueError, match=message):
            from_keras(theirs)

    def test_keys_and_values_of_different_widths(self) -> None:
        theirs = Layer(N_HEADS, D_HEAD)
        theirs.build((None, None, D_MODEL), (None, None, 7), (None, None, 8))
        with pytest.raises(ValueError, match=r"\(value_width=7\): ours has one memory, keys 8"):
            from_keras(theirs)

    def test_scale(self) -> None:
        theirs = attention()
        theirs._inverse_sqrt_key_dim = 1.0
        with pytest.raises(ValueError, match=r"\(scale=1.0\): our logits are scaled by 1/sqrt"):
            from_keras(theirs)

    def test_not_built(self) -> None:
        with pytest.raises(ValueError, match=r"\(built=False\): it gets its weights when"):
            from_keras(Layer(N_HEADS, D_HEAD))

    def test_adapters(self) -> None:
        theirs = attention()
        theirs.query_dense.enable_lora(2)
        with pytest.raises(ValueError, match="has 4 weights or, with biases, 8, got 10"):
            from_keras(theirs)

    def test_arrays(self) -> None:
        arrays = attention().get_weights()
        with pytest.raises(ValueError, match="has 4 weights or, with biases, 8, got 7"):
            from_keras(arrays[:7])
        with pytest.raises(ValueError, match=r"kernels \(width, heads, width\), got \(12, 20\)"):
            from_keras([arrays[0].reshape(12, 20), *arrays[1:]])
        with pytest.raises(ValueError, match=r"heads=\[4, 2, 4\]\): the query has 4, and all"):
            from_keras([*arrays[:2], arrays[2][:, :2], *arrays[3:]])
        with pytest.raises(ValueError, match=r"do not fit together: .* for key"):
            from_keras([*arrays[:2], arrays[2][:, :, :2], *arrays[3:]])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_kv_heads": 2}, r"\(n_kv_heads=2\): keras.layers.MultiHeadAttention needs 4"),
            ({"position": ALiBi()}, r"\(position=ALiBi\(.*\): keras.* needs None"),
            ({"bias": "qkv"}, r"\(bias='qkv'\): keras.layers.MultiHeadAttention needs"),
            ({"bias": "output"}, r"\(bias='output'\): keras.layers.MultiHeadAttention needs"),
        ],
    )
    def test_ours(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            to_keras(MultiHeadAttention(D_MODEL, N_HEADS, **options))

    @pytest.mark.parametrize("part", ["query", "key", "value", "output"])
    def test_projections_of_another_kind(self, part: str) -> None:
        theirs = attention(dtype="float32")
        getattr(theirs, f"_{part}_dense").activation = keras.activations.relu
        with pytest.raises(
            ValueError, match=rf"{part}_dense\(activation='relu'\): our projections"
        ):
            from_keras(theirs)
        theirs = attention(dtype="float32")
        getattr(theirs, f"_{part}_dense").dtype_policy = "mixed_bfloat16"
        with pytest.raises(ValueError, match=rf"{part}_dense\(dtype='bfloat16'\): ours computes"):
            from_keras(theirs)

    @pytest.mark.parametrize("missing", [1, 2])
    def test_biases_on_some(self, missing: int) -> None:
        ours = MultiHeadAttention(D_MODEL, N_HEADS, bias=True)
        for part in (ours.key, ours.value)[:missing]:
            part.bias = None
        with pytest.raises(ValueError, match=r"bias='query and .*output'\): keras.* needs False"):
            to_keras(ours)

    @pytest.mark.usefixtures("without_shape_checks")
    def test_something_else(self) -> None:
        with pytest.raises(TypeError, match="expected MultiHeadAttention of keras, got torch"):
            from_keras(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="expected MultiHeadAttention of keras, got attnbook"):
            from_keras(MultiHeadAttention(4, 2))
        with pytest.raises(TypeError, match="expected MultiHeadAttention of attnbook, got Linear"):
            to_keras(nn.Linear(2, 2))
