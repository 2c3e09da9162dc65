"""Files that are written whole or not at all."""

import json
from pathlib import Path

from attnbook import files

BUILD = Path("_build")


def write_whole(path: Path, text: str) -> None:
    """Write a text so that whoever reads it finds the old one or the new, never a part.

    What is half written lies under ``_build``, so a process that is killed leaves nothing beside
    the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    BUILD.mkdir(exist_ok=True)
    files.write_whole(path, text.encode(), folder=BUILD)


def as_json(content: object) -> str:
    """JSON as it is committed: sorted, an entry a line."""
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def in_lines(content: object, depth: int, level: int = 1) -> str:
    """JSON with an entry a line down to a depth, so that a diff shows what changed in it.

    Example:
        >>> print(in_lines({"rows": [[1, 2], [3]]}, 2))
        {
         "rows": [
          [1, 2],
          [3]
         ]
        }
    """
    if not depth or not content or not isinstance(content, dict | list):
        return json.dumps(content)
    named = content.items() if isinstance(content, dict) else (("", each) for each in content)
    lines = [
        f"{json.dumps(name)}: " * isinstance(content, dict) + in_lines(each, depth - 1, level + 1)
        for name, each in named
    ]
    first, last = "{}" if isinstance(content, dict) else "[]"
    before = f"\n{' ' * level}"
    return f"{first}{before}{f',{before}'.join(lines)}\n{' ' * (level - 1)}{last}"
