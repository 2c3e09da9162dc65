"""Figures that a reader can move.

Python draws a figure's default state as SVG, which tells the story alone: on paper, on GitHub,
without a script. On a page and in JupyterLab ``figures.js`` adds controls and draws again what
they change. A figure is two files: ``name.py`` says what is shown, computed with ``attnbook``, and
how it is drawn; ``name.js`` computes the same numbers. How a number becomes a length, a colour or
a text is written once, in the SVG itself: see ``drawing.Bound``.
"""
