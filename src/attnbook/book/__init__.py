"""What the chapters use to state, check, draw and ask."""

from attnbook.book.claims import ClaimFailedError, claim, seeds
from attnbook.book.figures import use_style
from attnbook.book.listings import show_source
from attnbook.book.studies import study

__all__ = ["ClaimFailedError", "claim", "seeds", "show_source", "study", "use_style"]
