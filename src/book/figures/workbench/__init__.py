"""The bench: one small model that reads "the cat sat", each of its numbers open to change.

``model.py`` computes it with ``attnbook``; ``model.js`` computes the same in the page, forward and
backward. Tests hold the two together for every switch and for random numbers.
"""
