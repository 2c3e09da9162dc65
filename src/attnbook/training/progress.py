"""What a training shows. Nothing that is shown, and no place to show it, can end a training."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from attnbook.training.config import TrainingConfig
from attnbook.training.history import History
from attnbook.training.processes import Processes

try:
    from tqdm import tqdm
except ModuleNotFoundError:  # no bar is no reason not to train
    tqdm = None  # type: ignore[assignment,misc]

_bars: list[Any] = []


def writable(text: str, stream: Any) -> str:
    """The text, with the numbers of those letters that the stream's encoding lacks."""
    encoding: str = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say(text: str, *, error: bool = False) -> None:
    """Print above the bar what the output can take.

    Args:
        text: to print.
        error: to the standard error.

    Example:
        >>> say("after 10 steps")
        after 10 steps
    """
    stream = sys.stderr if error else sys.stdout
    if stream is None:
        return
    for shown in _bars:
        shown.clear()
    try:
        print(writable(text, stream), file=stream, flush=True)
    except (OSError, ValueError):
        # A closed pipe, a full disk, a terminal that went away. At its end, Python would write the
        # rest again, and that it can't would be how the command ended.
        setattr(sys, "stderr" if error else "stdout", None)
    for shown in _bars:
        shown.refresh()


@contextmanager
def bar(config: TrainingConfig, history: History, world: Processes) -> Iterator[Callable[[], None]]:
    """A bar with the loss, targets per second and the time left; gives what advances it."""
    quiet = os.environ.get("TQDM_DISABLE", "0") not in ("", "0") or world.rank > 0
    if tqdm is None or sys.stderr is None or quiet:
        yield lambda: None
        return
    seen = 0

    def show() -> None:
        nonlocal seen
        seen += history.targets[-1]
        rate = seen / max(shown.format_dict["elapsed"], 1e-9)
        shown.set_postfix_str(f"loss {history.losses[-1]:.3f}, {rate:,.0f} tokens/s", False)
        shown.update()

    with tqdm(
        total=config.steps,
        initial=len(history.losses),
        desc="training",
        unit="step",
        leave=False,
        file=_Lenient(sys.stderr),
    ) as shown:
        _bars.append(shown)
        try:
            yield show
        finally:
            _bars.remove(shown)


class _Lenient:
    """A stream whose failures are nobody's: tqdm would pass them on, holding its lock."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self.stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
