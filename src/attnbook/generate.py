"""Write with a model: ``python -m attnbook.generate FOLDER "prompt"``.

The folder is a run that ``python -m attnbook.train`` made, or one of Hugging Face's with GPT-2,
Llama, Gemma (the first), Mistral, Qwen2 or Qwen3.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Generator

from attnbook.train import explained, load_run, starting_point, write
from attnbook.training.progress import writable


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m attnbook.generate", description=(__doc__ or "").replace("``", "")
    )
    made.add_argument("folder", type=Path, help="a run, or a folder of Hugging Face's")
    made.add_argument("prompt", nargs="?", default="", help="what the text begins with")
    made.add_argument("--tokens", type=int, default=200, help="tokens to write (200)")
    made.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (0.8)")
    made.add_argument("--top-k", type=int, help="draw among so many (50, or all with --top-p)")
    made.add_argument("--top-p", type=float, help="draw among the likeliest of this probability")
    made.add_argument("--seed", type=int, help="for the same text again")
    made.add_argument(
        "--last", action="store_true", help="of a run: not the model with the lowest held-out loss"
    )
    return made


def show(text: str) -> None:
    """Print what the standard output can take.

    Raises:
        OSError: if it can take nothing: names it.
    """
    try:
        print(writable(text, sys.stdout), end="", flush=True)
    except OSError as error:
        sys.stdout = None  # else Python writes the rest at its end
        raise OSError(error.errno, error.strerror, "standard output") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    command = parser()
    given = command.parse_intermixed_args(arguments)  # options may stand before the prompt
    top_k = 50 if given.top_k is None and given.top_p is None else given.top_k
    for name, value, is_right, expected in (
        ("tokens", given.tokens, given.tokens >= 0, "at least 0"),
        ("temperature", given.temperature, given.temperature >= 0, "at least 0"),
        ("top-k", top_k, top_k is None or top_k >= 1, "at least 1"),
        ("top-p", given.top_p, given.top_p is None or 0 < given.top_p <= 1, "above 0, at most 1"),
        ("seed", given.seed, given.seed is None or 0 <= given.seed < 2**64, "from 0 to 2**64 - 1"),
    ):
        if not is_right:
            command.error(f"--{name} must be {expected}, got {value}")
    draws = Generator()
    draws.seed() if given.seed is None else draws.manual_seed(given.seed)
    try:
        load = partial(load_run, last=True) if given.last else starting_point
        model, tokenizer = load(given.folder)
        for piece in write(
            model,
            tokenizer,
            given.prompt,
            given.tokens,
            temperature=given.temperature,
            top_k=top_k,
            top_p=given.top_p,
            generator=draws,
        ):
            show(piece)
        show("\n")
    except (ValueError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"error: {explained(error, given.folder)}")
    except KeyboardInterrupt:
        sys.exit(1)


if __name__ == "__main__":
    main()
