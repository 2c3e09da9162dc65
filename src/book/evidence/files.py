"""Files that are written whole or not at all."""

import json
import os
import shutil
import tempfile
from pathlib import Path

BUILD = Path("_build")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it finds the old text or the new, never a part.

    What is half written lies under ``_build``, so a process that is killed leaves nothing beside
    the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    BUILD.mkdir(exist_ok=True)
    handle, name = tempfile.mkstemp(dir=BUILD, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if path.exists():
            shutil.copymode(path, name)
        else:
            Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def as_json(content: object) -> str:
    """JSON as it is committed: sorted, an entry a line."""
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
