"""Names, layers and parts; and that a probe changes nothing and leaves nothing behind."""

import contextlib
import threading

import pytest
import torch
import torch.nn.functional as F
from probed import batch, language_model, loss_of, row
from torch import Tensor, nn

from attnbook import MultiHeadAttention, Transformer, TransformerConfig
from attnbook.probes import Probe


def hooks_of(model: nn.Module) -> list[object]:
    """Everything that hangs on the modules and parameters."""
    kinds = [kind for kind in vars(model) if "_hooks" in kind]
    return [
        *(hook for m in model.modules() for kind in kinds for hook in getattr(m, kind).values()),
        *(
            hook
            for p in model.parameters()
            for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks)
            for hook in (hooks or {}).values()
        ),
    ]


def test_layers_and_parts():
    model, (ids, targets) = language_model(), batch()
    with Probe(model) as probe:
        loss_of(model, ids, targets).backward()
    for name, layer, part in [
        ("blocks.1.attention.output", 1, "attention.output"),
        ("blocks.0", 0, "block"),
        ("embedding", None, "embedding"),
        ("(model)", None, "(model)"),
    ]:
        got = row(probe.activations, name)
        assert (got.layer, got.part) == (layer, part)
    weight = row(probe.parameters, "blocks.1.feed_forward.inner.weight")
    assert (weight.layer, weight.part) == (1, "feed_forward.inner.weight")
    assert probe.activations.layers == [0, 1]
    assert probe.attention.parts == ["attention"]


def test_parts_of_two_stacks():
    model = Transformer(TransformerConfig(vocab_size=9, d_model=8, n_heads=2, n_layers=1))
    with Probe(model) as probe:
        model(torch.randint(9, (1, 4)), torch.randint(9, (1, 3)))
    parts = ["encoder_blocks.attention", "decoder_blocks.attention"]
    assert probe.attention.parts == [*parts, "decoder_blocks.cross_attention"]
    assert "encoder_blocks.block" in probe.activations.parts


def test_only_the_outermost_stack_of_like_items_counts():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(2)))
            self.head = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.h(x))

    with Probe(model := Model()) as probe:
        model(torch.randn(1, 2))
    assert probe.activations.layers == [0, 1]
    assert row(probe.activations, "h.1.0").part == "0"
    assert row(probe.activations, "head.1").part == "head.1"
    with Probe(model := nn.Sequential(nn.Linear(2, 2), nn.Tanh())) as probe:  # no like items
        model(torch.randn(1, 2))
    assert probe.activations["part"].tolist() == ["(model)", "Linear", "Tanh"]


def test_only():
    model, (ids, _) = language_model(), batch()

    def read(only: str | list[str]) -> Probe:
        with Probe(model, only=only) as probe:
            model(ids)
        return probe

    stream = read("blocks")
    assert stream.activations["name"].tolist() == ["blocks.0", "blocks.1"]
    assert stream.attention["name"].tolist() == ["blocks.0.attention", "blocks.1.attention"]
    assert set(stream.parameters["layer"]) == {0, 1}
    one = read(["*.1.attention"])
    assert one.activations["name"].tolist() == ["blocks.1.attention"]
    names = [f"attention.{name}" for name, _ in model.blocks[1].attention.named_parameters()]
    assert one.parameters.parts == names
    with pytest.raises(ValueError, match=r"no module fits 'h\.\*'; there are \(model\), embed"):
        read(["blocks", "h.*"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_to_the_last_bit(dtype):
    model, (ids, targets) = language_model(dropout=0.3, max_tokens=32).to(dtype), batch()
    start = {name: x.clone() for name, x in model.state_dict().items()}

    def step() -> list[Tensor]:
        model.load_state_dict(start)
        model.zero_grad()
        torch.manual_seed(1)
        loss = loss_of(model, ids, targets)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return [loss, *gradients, *(p.clone() for p in model.parameters()), torch.get_rng_state()]

    expected = step()
    with Probe(model):
        got = step()
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_no_hook_stays(error):
    model, (ids, targets) = language_model(), batch()
    model.blocks[0].register_forward_hook(lambda *_: None)
    model.embedding.weight.register_hook(lambda _: None)
    before = hooks_of(model)
    expected = pytest.raises(error) if error else contextlib.nullcontext()
    with expected, Probe(model) as probe:
        loss = loss_of(model, ids, targets)
        assert len(hooks_of(model)) > len(before)
        if error:
            raise error
        loss.backward(retain_graph=True)
    assert hooks_of(model) == before
    assert not torch.overrides._get_current_function_mode_stack()
    seen = len(probe._gradients)
    loss.backward()  # through tensors that had hooks
    assert len(probe._gradients) == seen


def test_no_hook_stays_after_an_error_while_entering(monkeypatch):
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Probe, "_watch_parameters", fail)
    with pytest.raises(KeyboardInterrupt), Probe(model := language_model()):
        pass
    assert not hooks_of(model)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_model_leaves_the_names_right(error):
    class Failing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.failing, self.attention = Failing(8, 8), MultiHeadAttention(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            with contextlib.suppress(error):
                self.failing(x)
            return self.attention(x) + F.scaled_dot_product_attention(x, x, x)

    class Outer(nn.Sequential):
        pass

    with Probe(model := Outer(Model())) as probe:
        model(torch.randn(1, 3, 8))
        model(torch.randn(1, 3, 8))
    assert probe.attention["name"].tolist()[-1] == "0.attention"
    assert probe.attention.where(name="0.attention")["calls"] == 2


def test_tables_are_there_after_the_block():
    probe = Probe(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="run the model in `with probe:`"):
        _ = probe.activations
    with probe, pytest.raises(RuntimeError, match="after the block"):
        _ = probe.attention
    with pytest.raises(RuntimeError, match="make another"), probe:
        pass
    assert len(probe.activations) == 0
    assert len(probe.attention["entropy"]) == 0


def test_compiled_models_run_uncompiled():
    model, (ids, targets) = language_model(), batch()
    with Probe(model) as plain:
        loss_of(model, ids, targets)
    whole = torch.compile(model, backend="eager")
    with Probe(whole) as probe:
        loss_of(whole, ids, targets)
    assert probe.activations["name"].tolist() == plain.activations["name"].tolist()
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    with Probe(model) as probe:
        loss_of(model, ids, targets)
    assert str(probe.activations) == str(plain.activations)
    assert str(probe.attention) == str(plain.attention)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("nested", [True, False])
def test_padding_of_torch_encoders(nested):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x, padding = torch.randn(2, 4, 8), torch.arange(4) >= torch.tensor([[3], [4]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        with Probe(model):
            got = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(got[~padding], expected[~padding])
    assert torch.allclose(got, expected) != nested  # nested: zeros at padding


def test_other_threads_are_refused():
    model, errors = MultiHeadAttention(8, 2), []

    def run() -> None:
        try:
            model(torch.randn(1, 3, 8))
        except RuntimeError as error:
            errors.append(str(error))

    with Probe(model) as probe:
        run()
        (thread := threading.Thread(target=run, name="other")).start()
        thread.join()
    assert len(errors) == 1
    assert errors[0].startswith("expected the model to run in the thread that entered the block")
    assert errors[0].endswith("got 'other'")
    assert probe.attention["calls"].tolist() == [1]
