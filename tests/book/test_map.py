"""The map is true: followed arrow by arrow it computes what the package computes."""

import math
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
import torch
from built import HTML, violations
from playwright.sync_api import expect
from torch import Tensor

from attnbook import LanguageModel, ModelConfig
from attnbook.attention import attention_logits
from attnbook.masks import causal_mask
from book.figures.map import about, draw
from book.figures.map.parts import BACK, LAYOUTS, PARTS, Part, arrows, part_of

SIZES = {"tokens": 5, "d_model": 12, "heads": 3, "d_k": 4, "vocab": 17}
FORMS = ("pre", "post")


def model_of(form: str) -> LanguageModel:
    config = ModelConfig(vocab_size=17, d_model=12, n_heads=3, n_layers=1, norm=form)
    model = LanguageModel(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:  # or two norms that start as ones could be exchanged
            torch.nn.init.normal_(parameter)
    return model


def follow(form: str, model: LanguageModel, ids: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The value of each box, from what leads to it."""
    block, n_tokens = model.blocks[0], ids.shape[-1]
    attention, first, second = (
        block.attention,
        block.attention_residual,
        block.feed_forward_residual,
    )
    compute: dict[str, Callable[..., Tensor]] = {
        "ids": lambda: ids,
        "embedding": model.embedding,
        "position": lambda: model.positions(torch.arange(n_tokens)),
        "sum": torch.add,
        "pre.norm1": first.norm,
        "pre.norm2": second.norm,
        "post.norm1": first.norm,
        "post.norm2": second.norm,
        "final_norm": model.final_norm,
        "attention": lambda x: attention(x, causal=True),
        "add": torch.add,
        "feed_forward": block.feed_forward,
        "output": model.embedding.logits,
        "logits": lambda x: x,
        "loss": lambda x: torch.nn.functional.cross_entropy(x.flatten(0, -2), targets.flatten()),
        "@in": lambda: value("pre.norm1" if form == "pre" else "sum"),
        "query": attention.query,
        "key": attention.key,
        "value": attention.value,
        "split": lambda *qkv: torch.stack([x.unflatten(-1, (3, 4)).transpose(1, 2) for x in qkv]),
        "@values": lambda: value("split")[2],
        "scores": lambda qkv: attention_logits(qkv[0], qkv[1]),
        "mask": lambda s: s.masked_fill(~causal_mask(n_tokens), -math.inf),
        "softmax": lambda s: s.softmax(-1),
        "mean": lambda v, a: a @ v,
        "merge": lambda o: o.transpose(1, 2).flatten(-2),
        "out": attention.output,
    }
    other = {"pre": "post", "post": "pre"}[form]
    left_out = (f"{other}.", f"@{other}", "final_norm" if form == "post" else "inside")
    values: dict[str, Tensor] = {}

    def value(name: str) -> Tensor:
        if name not in values:
            before = [a for _, a, b in arrows() if b == name and not a.startswith(left_out)]
            own = compute.get(name, compute.get(part_of(name), lambda x: x))
            values[name] = own(*map(value, before))
        return values[name]

    value("loss")
    value("out")
    return values


@pytest.mark.parametrize("form", FORMS)
def test_following_the_arrows_gives_the_models_numbers(form):
    model = model_of(form)
    ids, targets = torch.randint(17, (2, 2, 5))
    values = follow(form, model, ids, targets)
    torch.testing.assert_close(values["logits"], model(ids))
    torch.testing.assert_close(values["loss"], model.loss(ids, targets))
    torch.testing.assert_close(values["out"], values[f"{form}.attention"])


@pytest.mark.parametrize("form", FORMS)
def test_shapes_on_the_map_are_those_of_the_values(form):
    values = follow(form, model_of(form), *torch.randint(17, (2, 2, 5)))
    values["split"] = values["split"][0]
    wrong = {}
    for name, value in values.items():
        if not name.startswith("@"):
            named = PARTS[part_of(name)].shape.strip("()").replace(" ", "").split(",")
            shape = tuple(SIZES[size] for size in named if size)
            if tuple(value.shape) not in (shape, (2, *shape)):
                wrong[name] = tuple(value.shape)
    assert wrong == {}


def test_parts_start_as_the_map_says():
    model = LanguageModel(ModelConfig(vocab_size=400, d_model=96, norm="pre"))
    attention, feed_forward = model.blocks[0].attention, model.blocks[0].feed_forward
    matrices = [attention.query, attention.key, attention.value, attention.output]
    matrices += [feed_forward.inner, feed_forward.outer]
    for matrix in matrices:
        bound = math.sqrt(6 / sum(matrix.weight.shape))
        assert 0.99 * bound < matrix.weight.abs().max() <= bound
        assert matrix.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert model.embedding.weight.var().item() == pytest.approx(1 / 96, rel=0.05)
    assert torch.equal(model.final_norm.weight, torch.ones(96))
    assert not feed_forward.inner.bias.any()
    assert not model.final_norm.bias.any()


def test_every_size_has_the_same_boxes():
    wide, narrow = ({*layout.boxes} for layout in LAYOUTS.values())
    assert wide == narrow
    assert {part_of(name) for name in wide if name[0] != "@"} == {*PARTS}
    assert {end for _, *ends in arrows() for end in ends} <= wide


@pytest.mark.parametrize("size", LAYOUTS)
def test_boxes_do_not_overlap_and_lie_inside(size):
    layout = LAYOUTS[size]
    boxes = [(n, b) for n, b in layout.boxes.items() if b.width]
    for i, (name, a) in enumerate(boxes):
        assert a.x >= 6, name
        assert a.x + a.width <= layout.width - 6, name
        for other, b in boxes[:i]:
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x
            assert apart or abs(a.y - b.y) >= (a.height + b.height) / 2, (name, other)


@pytest.mark.parametrize("size", LAYOUTS)
def test_the_drawing_is_described_and_each_box_is_a_named_link(size):
    def href(part: Part) -> str:
        return f"{part.page}.html#{part.anchor}"

    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(draw(size, href))
    assert root.get("aria-label")
    assert "softmax" in root.findtext(f"{svg}desc")
    links = root.findall(f"{svg}a")
    boxes = [name for name in LAYOUTS[size].boxes if name[0] != "@"]
    assert [a.get("href") for a in links] == [href(PARTS[part_of(name)]) for name in boxes]
    assert all(
        PARTS[part_of(n)].label in a.findtext(f"{svg}title")
        for n, a in zip(boxes, links, strict=True)
    )


def test_the_map_says_a_part_and_turns_round(page, site):
    page.goto(f"{site}chapters/notation.html")
    map_ = page.locator(".attention-map")
    says, list_ = map_.locator(".said"), map_.locator("select")
    list_.select_option("query")
    expect(says).to_have_text(about(PARTS["query"]).replace("_", ""))
    expect(says.locator("sub")).not_to_have_count(0)  # W with a lowered Q
    expect(map_.locator("a.part.chosen:visible")).to_have_count(1)
    map_.locator("a.part.softmax:visible").focus()  # by keyboard, or by the pointer
    expect(list_).to_have_value("softmax")
    button = map_.locator("button")
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(says).to_have_text(f"Backward through softmax: {PARTS['softmax'].back}")
    expect(map_.locator("polygon.head.stream:visible")).to_have_count(0)
    assert map_.locator("polygon.tail:visible").count() > 10
    assert violations(page, ".attention-map") == []


def test_a_tap_chooses_and_a_second_follows(window, site):
    page = window(f"{site}chapters/notation.html", width=390, has_touch=True)
    box = page.locator(".attention-map a.part.softmax:visible")
    box.tap()
    expect(page.locator(".attention-map .said")).to_have_text(about(PARTS["softmax"]))
    box.tap()
    expect(page).to_have_url(re.compile("04_attention_weights"))


def test_each_part_has_a_line_of_the_backward_pass():
    assert [*BACK] == [*PARTS]


def test_every_part_leads_to_a_section():
    pages = {
        part.page: (HTML / "chapters" / f"{part.page}.html").read_text("utf-8")
        for part in PARTS.values()
    }
    lost = {n: p.anchor for n, p in PARTS.items() if f'id="{p.anchor}"' not in pages[p.page]}
    assert lost == {}
