"""Files that are written whole or not at all, files of tensors among them; and a lock."""

import errno
import json
import os
import shutil
import uuid
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import safetensors
import safetensors.torch
from filelock import FileLock, Timeout
from torch import Tensor


def write_whole(path: Path, *parts: bytes | memoryview, folder: Path | None = None) -> None:
    """Write a file elsewhere, then move it onto ``path``: a reader finds the old one or the new.

    The permissions of the file that was there are kept; a link is replaced.

    Args:
        path: of the file.
        parts: what it holds, one after another.
        folder: on the same disk, where a kill may leave what is unfinished; that of ``path`` if not
            given.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(Path(folder, "file"), b"one, ", b"two")
        ...     Path(folder, "file").read_text()
        'one, two'
    """
    unfinished = (folder or path.parent) / f".{uuid.uuid4().hex}.unfinished"
    try:
        with unfinished.open("xb") as file:
            if path.exists():
                shutil.copymode(path, unfinished)  # before there is anything to read
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def lock(path: Path) -> AbstractContextManager[object]:
    """Take the lock that a file stands for; it is held until the block is left, or by a kill.

    Where there are no locks, as on some file systems, nothing is held.

    Raises:
        BlockingIOError: if it is held already.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, lock(Path(folder, "lock")):
        ...     lock(Path(folder, "lock"))
        Traceback (most recent call last):
        BlockingIOError: ... the lock is held: '...lock'
    """
    try:
        return FileLock(path).acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(errno.EWOULDBLOCK, "the lock is held", str(path)) from None
    except OSError:
        return nullcontext()


def write(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata: first beside ``path``, then moved onto it.

    A save that is interrupted leaves the file that was there. Of saves at the same time the last
    one stays. The permissions of the file that was there are kept. Tensors that share memory are
    written one by one. The same tensors and metadata give the same bytes.

    Raises:
        OSError: if ``path`` is something else than a file, such as a folder or a device.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/file", {"x": torch.ones(2)}, {"by": "me"})
        ...     read(f"{folder}/file")
        ({'x': tensor([1., 1.])}, {'by': 'me'})
    """
    path = Path(path).resolve()  # of a link, the file that it points to
    if path.exists() and not path.is_file():  # a device would be replaced, too
        raise OSError(f"{path} is not a file that can be replaced")
    header, data = _ordered(safetensors.torch.save(_apart(tensors), metadata))
    write_whole(path, header, data)


def _ordered(saved: bytes) -> tuple[bytes, memoryview]:
    """Header and data of a file; safetensors writes the metadata in another order each time."""
    end = 8 + int.from_bytes(saved[:8], "little")
    entries = json.loads(saved[8:end])
    entries["__metadata__"] = dict(sorted(entries["__metadata__"].items()))
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the data is aligned
    return len(header).to_bytes(8, "little") + header, memoryview(saved)[end:]


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous, each with memory of its own, as the format wants them."""
    apart, taken = {}, set()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in taken else tensor
        taken.add(memory)
    return {name: tensor.contiguous() for name, tensor in apart.items()}


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a file, on the CPU, and its metadata.

    Raises:
        ValueError: if it is not a whole safetensors file; says so if it is git-lfs's stand-in.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            # Copies: a tensor of the file itself would change or vanish with it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (safetensors.SafetensorError, TypeError) as error:  # a size beyond 64 bits is the latter
        with Path(path).open("rb") as file:
            is_pointer = file.read(23) == b"version https://git-lfs"
        what = "it is a pointer of git-lfs, so run git lfs pull" if is_pointer else error
        raise ValueError(f"{path} is not a safetensors file: {what}") from None
