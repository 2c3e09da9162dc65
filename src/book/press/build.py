"""The commands behind the Makefile: execute chapters, make records, render, re-run the claims.

``python -m book.press.build book | html | epub | slides | chapters | studies | claims | read``
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attnbook.files import lock
from book.evidence.files import BUILD
from book.evidence.records import StudyError, keep_records, make_records
from book.evidence.workers import ClusterError
from book.press import slides
from book.press.contents import (
    BuildError,
    chapters,
    check_records,
    choose,
    out_of_date,
    records_at_fault,
    studies_in,
)
from book.press.execute import write_outputs
from book.press.held import repeat_claims
from book.press.read import read
from book.press.render import offer, render, write_epub


@contextmanager
def alone() -> Iterator[None]:
    """Keep other commands out of this checkout: by a lock, which a kill releases.

    Raises:
        BuildError: if another one is at work.
    """
    BUILD.mkdir(exist_ok=True)
    holder = BUILD / "holder"
    try:
        held = lock(BUILD / "lock")
    except BlockingIOError:
        number = holder.read_text() if holder.exists() else "that begins"
        raise BuildError(f"another make is at work here (process {number}): wait for it") from None
    with held:
        holder.write_text(str(os.getpid()))
        yield


def book() -> None:
    """Execute what is out of date, then render; what can't be executed is shown as it was made.

    Raises:
        BuildError: when the pages are there, if a record is not of today's code, or a chapter
            raised; says what to run.
    """
    wrong = records_at_fault(chapters())
    waiting = {path for path in chapters() if wrong.keys() & {*studies_in(path)}}
    stale = {p: why for p in chapters() if p not in waiting and (why := out_of_date(p))}
    for path, why in stale.items():
        print(f"{path.stem}: {', '.join(why)}", flush=True)
    if not stale and not waiting:
        print("All chapters are up to date", flush=True)
    errors = [*wrong.values()]
    try:
        write_outputs(list(stale), quoted=False)
    except BuildError as error:
        errors.append(str(error))
    render()
    if errors:
        raise BuildError(
            "\n\n".join([*errors, "The pages are built, with what hangs on it marked"])
        )


def write_chapters(only: Sequence[str]) -> None:
    """Re-execute chapters, all or those named, and write their outputs."""
    chosen = choose(only)
    check_records(chosen)
    write_outputs(chosen, quoted=True)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m book.press.build", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("book", help="execute what is out of date, build the HTML")
    commands.add_parser("html", help="build the HTML from the committed outputs")
    commands.add_parser("epub", help="build the book for e-readers")
    commands.add_parser("slides", help="make a deck of each built chapter")
    writing = commands.add_parser("chapters", help="re-execute and write the outputs")
    writing.add_argument("only", nargs="*", metavar="CHAPTER", help="all, if none is named")
    recording = commands.add_parser("studies", help="make the records that are stale")
    recording.add_argument("only", nargs="*", metavar="STUDY", help="these, stale or not")
    recording.add_argument("--same-as", metavar="COMMIT", help="keep records if no number changed")
    repeating = commands.add_parser("claims", help="re-run under other seeds")
    repeating.add_argument("only", nargs="*", metavar="CHAPTER", help="all, if none is named")
    repeating.add_argument("--seeds", type=int, default=3)
    repeating.add_argument("--live", action="store_true", help="with the studies as recorded")
    reading = commands.add_parser("read", help="list short sentences that are to be read again")
    reading.add_argument("--all", action="store_true", help="note that all were read")
    options = parser.parse_args(arguments)
    if not Path("_toc.yml").exists():
        print(f"{Path.cwd()} is not the book's folder: it has no _toc.yml", file=sys.stderr)
        return 1
    try:
        with alone():
            run(options)
    except (BuildError, ClusterError, StudyError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, or one that is not for writing
        where = f": {error.filename}" if error.filename else ""
        print(f"\n{error.strerror or error}{where}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.command == "book":
        book()
    elif options.command == "html":
        render()
    elif options.command == "epub":
        write_epub()
        offer()
    elif options.command == "slides":
        sys.stdout.writelines(slides.main())
    elif options.command == "chapters":
        write_chapters(options.only)
    elif options.command == "read":
        read(all_read=options.all)
    elif options.command == "studies" and options.same_as:
        keep_records(options.same_as, options.only)
    elif options.command == "studies":
        make_records(options.only)
    else:
        repeat_claims(options.seeds, options.only, live=options.live)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nStopped", file=sys.stderr, flush=True)
        # At once, and not when the chapters have ended; their kernels leave with their parent.
        os._exit(130)
