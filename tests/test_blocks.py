import pytest
import torch
from torch import Tensor, nn

from attnbook import EncoderBlock, FeedForward
from attnbook.blocks import NormPlace

both_places = pytest.mark.parametrize("norm", ["pre", "post"])


def assert_near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def with_random_vectors(module: nn.Module) -> nn.Module:
    """Biases and norms start as zeros and ones, which would hide a mix-up."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return module


def test_feed_forward_is_the_formula_for_each_token_alone() -> None:
    network, x = with_random_vectors(FeedForward(4, 9)), torch.randn(2, 5, 4)
    y = network(x)
    for b in range(2):
        for t in range(5):
            inner = (network.inner.weight @ x[b, t] + network.inner.bias).clamp(min=0)
            assert_near(y[b, t], network.outer.weight @ inner + network.outer.bias)


def in_torchs_layout(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters, or their gradients, as torch.nn.TransformerEncoderLayer names and packs them."""
    qkv = [ours[f"attention.{name}.weight"] for name in ("query", "key", "value")]
    packed = {"self_attn.in_proj_weight": torch.cat(qkv)}
    packed["self_attn.out_proj.weight"] = ours["attention.output.weight"]
    for kind in ("weight", "bias"):
        packed[f"linear1.{kind}"] = ours[f"feed_forward.inner.{kind}"]
        packed[f"linear2.{kind}"] = ours[f"feed_forward.outer.{kind}"]
        packed[f"norm1.{kind}"] = ours[f"attention_norm.{kind}"]
        packed[f"norm2.{kind}"] = ours[f"feed_forward_norm.{kind}"]
    return packed


@both_places
def test_block_agrees_with_torchs_in_values_and_gradients(norm: NormPlace) -> None:
    ours = with_random_vectors(EncoderBlock(12, 3, 20, norm=norm))
    theirs = nn.TransformerEncoderLayer(
        12, 3, 20, dropout=0.0, batch_first=True, norm_first=norm == "pre"
    )
    missing = theirs.load_state_dict(in_torchs_layout(dict(ours.named_parameters())), strict=False)
    assert missing.missing_keys == ["self_attn.in_proj_bias", "self_attn.out_proj.bias"]
    x = torch.randn(2, 5, 12, requires_grad=True)
    x2 = x.detach().clone().requires_grad_()
    mask = (torch.rand(5, 5) < 0.6) | torch.eye(5).bool()

    output, expected = ours(x, mask), theirs(x2, src_mask=~mask)
    assert_near(output, expected)
    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction)
    assert_near(x.grad, x2.grad)
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, gradient in in_torchs_layout(gradients).items():
        assert_near(gradient, theirs.get_parameter(name).grad)


@both_places
def test_gradients_are_those_of_finite_differences(norm: NormPlace) -> None:
    block = with_random_vectors(EncoderBlock(4, 2, 9, norm=norm))
    x = torch.randn(1, 3, 4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: block(x, causal=True), (x,))


@both_places
def test_block_knows_no_order(norm: NormPlace) -> None:
    block, x, order = EncoderBlock(12, 3, 20, norm=norm), torch.randn(2, 6, 12), torch.randperm(6)
    assert_near(block(x[:, order]), block(x)[:, order])


@both_places
def test_causal_block_sees_nothing_ahead(norm: NormPlace) -> None:
    block, x = EncoderBlock(12, 3, 20, norm=norm), torch.randn(2, 6, 12)
    changed = x.clone()
    changed[:, 3] += 1.0
    before, after = block(x, causal=True), block(changed, causal=True)
    assert torch.equal(after[:, :3], before[:, :3])
    assert not torch.equal(block(changed)[:, :3], block(x)[:, :3])


def test_post_norm_output_is_normalized_and_pre_norm_keeps_the_stream() -> None:
    x = 100 * torch.randn(2, 6, 12)
    post, pre = EncoderBlock(12, 3, 20)(x), EncoderBlock(12, 3, 20, norm="pre")(x)
    torch.testing.assert_close(post.std(-1, correction=0), torch.ones(2, 6), rtol=0, atol=1e-4)
    assert (pre - x).abs().max() < 10


@both_places
def test_block_drops_out_in_training_only(norm: NormPlace) -> None:
    block, x = EncoderBlock(12, 3, 20, norm=norm, dropout=0.5), torch.randn(2, 6, 12)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


@both_places
def test_dropout_acts_on_the_attention_weights(norm: NormPlace) -> None:
    block, x = EncoderBlock(12, 3, 20, norm=norm, dropout=0.5), torch.randn(2, 6, 12)
    block.dropout.p = 0.0
    assert not torch.equal(block(x), block(x))


@both_places
def test_dropout_acts_on_what_is_added_to_the_stream(norm: NormPlace) -> None:
    block, x = EncoderBlock(12, 3, 20, norm=norm), torch.randn(2, 6, 12)
    block.dropout.p = 1.0
    nothing_added = x if norm == "pre" else block.feed_forward_norm(block.attention_norm(x))
    assert torch.equal(block(x), nothing_added)


@pytest.mark.usefixtures("without_shape_checks")
def test_norm_is_pre_or_post() -> None:
    with pytest.raises(ValueError, match="norm must be 'pre' or 'post', got 'sandwich'"):
        EncoderBlock(12, 3, 20, norm="sandwich")


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="n_heads must divide d_model, got 5 heads for 12"):
        EncoderBlock(12, 5, 20)
