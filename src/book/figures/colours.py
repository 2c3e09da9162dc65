"""One colour for each thing: in figures, formulas, sentences and what moves.

The first colour of each is for light pages, the second for dark ones. How far apart they have to
be, also for readers who are colour-blind, is in ``tests/book/test_colours.py``.
"""

import re

COLOURS: dict[str, tuple[str, str]] = {
    # The page and what a picture is made of.
    "page": ("#ffffff", "#121212"),
    "lane": ("#f4f6f9", "#1b1f26"),
    "cell": ("#ffffff", "#14171c"),
    "frame": ("#d5dbe4", "#39414d"),
    "faint": ("#e6eaf0", "#272d36"),
    "ink": ("#1e2530", "#e8ebf0"),
    "muted": ("#586272", "#a3adbb"),
    "zero": ("#626c7b", "#848e9c"),
    # What flows through a model.
    "stream": ("#334155", "#8794a8"),
    "query": ("#7424d6", "#b08cff"),
    "key": ("#b84d00", "#ff9d42"),
    "value": ("#009076", "#1fd6b0"),
    "value-letter": ("#00735e", "#1fd6b0"),
    "weight": ("#1e2530", "#e8ebf0"),
    "on-weight": ("#ffffff", "#121212"),
    "gradient": ("#c4123f", "#ff5c77"),
    "changed": ("#ffd84d", "#7d6a1e"),
    # Lines of a figure that are none of these: models or settings that are compared.
    "blue": ("#1c64d8", "#4c94f5"),
    "olive": ("#8f8420", "#d9d24a"),
    "rose": ("#e83fa6", "#ffb3e2"),
}

STREAM, QUERY, KEY, VALUE, WEIGHT, GRADIENT, MUTED, FRAME, LANE = (
    COLOURS[name][0]
    for name in ["stream", "query", "key", "value", "weight", "gradient", "muted", "frame", "lane"]
)
BLUE, OLIVE, ROSE = (COLOURS[name][0] for name in ("blue", "olive", "rose"))
"""For figures that matplotlib draws; on a dark page they are the dark ones."""


def as_variables(svg: str) -> str:
    """A drawing with the page's variables in place of colours for light pages.

    Example:
        >>> as_variables('<path style="fill: #7424d6"/>')
        '<path style="fill: var(--query)"/>'
    """
    variables: dict[str, str] = {}
    for name, (light, _) in COLOURS.items():
        variables.setdefault(light, f"var(--{name})")
    return re.sub("|".join(variables), lambda match: variables[match[0]], svg)


def css() -> str:
    """The colours as variables of a page.

    Example:
        >>> css().splitlines()[:2]
        ['html {', '  --page: #ffffff;']
    """
    sheets = (
        f"html{theme} {{\n"
        + "".join(f"  --{name}: {both[i]};\n" for name, both in COLOURS.items())
        + "}\n"
        for i, theme in enumerate(("", '[data-theme="dark"]'))
    )
    return "\n".join(sheets)


def in_light(text: str) -> str:
    """With the colours of light pages in place of variables, which few viewers know.

    Example:
        >>> in_light("fill: var(--page)")
        'fill: #ffffff'
    """
    names = "|".join(COLOURS)
    return re.sub(rf"var\(--({names})(?:,[^)]*)?\)", lambda name: COLOURS[name[1]][0], text)
