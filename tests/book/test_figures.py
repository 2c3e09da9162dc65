import matplotlib as mpl

from attnbook.book import use_style


def test_a_readers_own_settings_are_not_in_the_figures():
    with mpl.rc_context({"axes.grid": True, "font.size": 30, "image.cmap": "gray"}):
        use_style()
        drawn = {key: mpl.rcParams[key] for key in ("axes.grid", "font.size", "image.cmap")}
    assert drawn == {"axes.grid": False, "font.size": 10.5, "image.cmap": "viridis"}
