"""Write with a model that attnbook.train made: ``python -m attnbook.generate RUN "prompt"``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Generator

from attnbook.train import make_model, write
from attnbook.training import load_model


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m attnbook.generate", description="Write with a model of attnbook.train."
    )
    parser.add_argument("run", type=Path, help="the folder that attnbook.train made")
    parser.add_argument("prompt", nargs="?", default="", help="what the text begins with")
    parser.add_argument("--tokens", type=int, default=200, help="tokens to write (200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (0.8)")
    parser.add_argument("--top-k", type=int, default=50, help="draw among so many (50)")
    parser.add_argument("--seed", type=int, help="for the same text again")
    given = parser.parse_args(arguments)
    draws = Generator()
    draws.seed() if given.seed is None else draws.manual_seed(given.seed)
    try:
        model, tokenizer, _ = make_model(given.run)
        load_model(given.run, model)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    how = {"temperature": given.temperature, "top_k": given.top_k, "generator": draws}
    print(write(model, tokenizer, given.prompt, given.tokens, **how))


if __name__ == "__main__":
    main()
