"""Files of tensors: safetensors, written whole or not at all."""

import os
import shutil
import uuid
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor


def write(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata: first beside ``path``, then moved onto it.

    A save that is interrupted leaves the file that was there. Of saves at the same time the last
    one stays. The permissions of the file that was there are kept. Tensors that share memory are
    written one by one.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/file", {"x": torch.ones(2)}, {"by": "me"})
        ...     read(f"{folder}/file")
        ({'x': tensor([1., 1.])}, {'by': 'me'})
    """
    path = Path(path).resolve()  # of a link, the file that it points to
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file")
    data = safetensors.torch.save(_apart(tensors), metadata)
    unfinished = path.with_name(f".{uuid.uuid4().hex}.unfinished")
    try:
        with unfinished.open("xb") as file:
            if path.exists():
                shutil.copymode(path, unfinished)  # before there is anything to read
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


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
        ValueError: if it is not a whole safetensors file.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            # Copies: a tensor of the file itself would change or vanish with it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None
