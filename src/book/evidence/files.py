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
