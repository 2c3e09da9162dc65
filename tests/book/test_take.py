"""Figures that readers take away: SVG and PNG with a line that says whose they are."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from built import HTML
from PIL import Image
from playwright.sync_api import expect

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=["http", "file"])
def chapter(request, window, site):
    address = site if request.param == "http" else f"{HTML.as_uri()}/"
    return window(f"{address}chapters/04_attention_weights.html", color_scheme="dark")


def taken(page, name: str) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=name, exact=True).click()
    return Path(download.value.path())


@pytest.mark.parametrize("figure", ["Fig. 4.1", "Fig. 4.2"])
def test_a_figure_is_svg_by_itself_with_its_licence(chapter, figure):
    text = taken(chapter, f"SVG of {figure}").read_text(encoding="utf-8")
    assert "var(" not in text
    assert "currentcolor" not in text.lower()
    drawing = ElementTree.fromstring(text)
    credit = list(drawing.iter(f"{SVG}text"))[-1]
    assert credit.text == f"Attention, Measured, chapter 4, {figure}. CC BY 4.0"
    assert drawing[0].get("fill") == "#ffffff"  # of paper, on a dark page too
    _, y, _, height = map(float, drawing.get("viewBox").split())
    assert float(credit.get("y")) < y + height


def test_a_figure_is_png_of_the_same_shape(chapter):
    drawing = ElementTree.fromstring(taken(chapter, "SVG of Fig. 4.2").read_text("utf-8"))
    _, _, width, height = map(float, drawing.get("viewBox").split())
    with Image.open(taken(chapter, "PNG of Fig. 4.2")) as image:
        assert image.size == (1600, round(1600 * height / width))
        assert len(image.convert("RGB").getcolors(1_000_000)) > 50


def test_paper_has_no_buttons(chapter):
    buttons = chapter.locator(".take button").first
    expect(buttons).to_be_visible()
    chapter.emulate_media(media="print")
    expect(buttons).to_be_hidden()
    assert chapter.locator("html").get_attribute("data-theme") == "light"
