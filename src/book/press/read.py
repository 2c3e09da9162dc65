"""``make read``: short places to be read again, since something that they rest on has changed."""

import sys
from pathlib import Path
from typing import Any

from book.evidence.files import as_json, write_whole
from book.evidence.short import READ, Short, ShortError, to_read
from book.evidence.subjects import SubjectsError, read_subjects
from book.press import contents
from book.press.contents import BuildError


def read(*, all_read: bool = False) -> None:
    """Show each with the claims it rests on; note that all were read, once somebody says so.

    Args:
        all_read: say so at once.

    Raises:
        BuildError: if a sentence rests on nothing, or nobody is there to say so.
    """
    found = [
        each for path in contents.chapters() for each in contents.claims_of(contents.read(path))
    ]
    claims = {each["label"]: each for each in found}
    waiting, now = unread(claims)
    for short in waiting:
        print(f"{short.page} · {short.kind}\n  {short.says}")
        for claim in map(claims.__getitem__, short.labels):
            print(f"    {claim['label']}: {claim['statement']}: {claim['measured']}")
    if not waiting:
        print("All short places were read since what they rest on changed")
    elif all_read or (sys.stdin.isatty() and input("All read, and still so? [y/N] ") == "y"):
        write_whole(READ, as_json(now))
        print(f"{len(waiting)} noted in {READ}")
    else:
        raise BuildError(f"{len(waiting)} to be read; when they are right: make read ALL=1")


def unread(claims: dict[str, dict[str, Any]]) -> tuple[list[Short], dict[str, str]]:
    """See :func:`book.evidence.short.to_read`.

    Raises:
        BuildError: if a sentence rests on nothing.
    """
    try:
        return to_read(Path(), claims, read_subjects(Path(), claims))
    except (ShortError, SubjectsError) as error:
        raise BuildError(str(error)) from None
