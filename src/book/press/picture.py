"""The README's picture: ``make picture`` takes it of the built book."""

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from book.press.browser import find

PAGE = Path("_build/html/intro.html")
PICTURE = Path("src/book/sphinx/static/page.png")
UNFINISHED = Path("_build/page.png")


def main() -> None:
    """Take it, whole or not at all."""
    path = find("chromium")  # may ask a Playwright of its own
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        page = browser.new_page(viewport={"width": 1280, "height": 820}, color_scheme="light")
        page.goto(PAGE.resolve().as_uri(), wait_until="networkidle")
        page.locator('[data-key="S,2,1"]').hover()
        page.wait_for_timeout(500)  # until what changed has faded
        page.screenshot(path=UNFINISHED)
        browser.close()
    with Image.open(UNFINISHED) as picture:
        picture.convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE).save(
            UNFINISHED, optimize=True
        )  # a third of the bytes
    UNFINISHED.replace(PICTURE)
    sys.stdout.write(f"{PICTURE}\n")


if __name__ == "__main__":
    main()
