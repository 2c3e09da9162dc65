"""What the chapters use to state, check, draw and ask."""

from book.evidence.claims import ClaimFailedError, claim, seeds, tally
from book.evidence.listings import show_source
from book.evidence.records import study
from book.figures.style import use_style

__all__ = ["ClaimFailedError", "claim", "seeds", "show_source", "study", "tally", "use_style"]
