"""Checkpoints: one file with all that the next step depends on, written whole."""

import dataclasses
import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnbook import files
from attnbook.training.config import TrainingConfig
from attnbook.training.history import History

FORMAT = "attnbook training 2"


@dataclasses.dataclass
class Checkpoint:
    """A training on disk: ``checkpoint.safetensors`` in a folder.

    It holds the model's parameters, Adam's moments by the parameters' names and the history as
    tensors, and the configuration and a description of the model as JSON in the file's metadata.
    Each save replaces the file at once, so there is always a whole one.

    Example: see :func:`attnbook.training.loop.train`.
    """

    folder: Path
    model: nn.Module
    adam: torch.optim.AdamW
    config: TrainingConfig

    @property
    def path(self) -> Path:
        """The checkpoint's file."""
        return self.folder / "checkpoint.safetensors"

    def save(self, history: History) -> None:
        """Write the state after ``len(history.losses)`` steps.

        Raises:
            OSError: if it can't be written. What was there before is there still.
            FloatingPointError: if a parameter is not finite; and so it is then.
        """
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(
                    f"{name} is no longer finite after {len(history.losses)} steps"
                )
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        order = self._in_adam()
        for i, state in self.adam.state_dict()["state"].items():
            tensors |= {f"adam.{order[i]}.{part}": t for part, t in state.items()}
        tensors["history.losses"] = torch.tensor(history.losses, dtype=torch.float64)
        tensors["history.targets"] = torch.tensor(history.targets, dtype=torch.int64)
        metadata = {
            "format": FORMAT,
            "config": _as_json(self.config),
            "model": json.dumps(describe(self.model)),
            "trained": json.dumps(self._trained()),
            "evaluations": json.dumps(history.evaluations),
        }
        try:
            if self.path.is_symlink():  # it would be written where the link leads
                raise OSError(errno.EEXIST, "a link is there", str(self.path))
            self.folder.mkdir(parents=True, exist_ok=True)
            for interrupted in self.folder.glob(".*.unfinished"):
                interrupted.unlink()  # by a kill
            files.write(self.path, tensors, metadata)
        except OSError as error:
            message = (
                f"the checkpoint after {len(history.losses)} steps can't be written "
                f"({error.strerror}); " + ("the last one is kept" if self.exists() else "none is")
            )
            raise OSError(error.errno, message, str(self.path)) from error

    def exists(self) -> bool:
        """Whether there is a checkpoint."""
        return self.path.exists()

    def load(self) -> History:
        """Put model and optimizer into the saved state, and return the history.

        Raises:
            ValueError: if it is no checkpoint of this format, or one of another model, of other
                trained parameters or another configuration: names the first difference.
        """
        with _named(self.path):
            tensors, metadata = files.read(self.path)
            _check_format(self.path, metadata)
            _check_equal(self.path, json.loads(metadata["model"]), describe(self.model))
            _check_equal(self.path, json.loads(metadata["trained"]), self._trained())
            config = _as_json(self.config)
            _check_equal(self.path, _decisive(metadata["config"]), _decisive(config))
            self.model.load_state_dict(_below("model", tensors))
            order = self._in_adam()
            state: dict[int, dict[str, Tensor]] = {}
            for moment, tensor in _below("adam", tensors).items():
                name, _, part = moment.rpartition(".")
                state.setdefault(order.index(name), {})[part] = tensor
            groups = self.adam.state_dict()["param_groups"]
            self.adam.load_state_dict({"state": state, "param_groups": groups})
            return History(
                tensors["history.losses"].tolist(),
                tensors["history.targets"].tolist(),
                {int(step): value for step, value in json.loads(metadata["evaluations"]).items()},
            )

    def _in_adam(self) -> list[str]:
        """Names of the trained parameters, in the order in which Adam numbers them."""
        return [name for group in self.adam.param_groups for name in group["param_names"]]

    def _trained(self) -> dict[str, str]:
        """Which parameters are trained."""
        trained = self._in_adam()
        return {
            name: "trained" if name in trained else "frozen"
            for name, _ in self.model.named_parameters()
        }


def load_model(folder: str | Path, model: nn.Module) -> None:
    """Copy the parameters in a training's folder into a model of the same kind.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        ValueError: if it is of another format or model: names the first difference.

    Example:
        >>> import tempfile
        >>> from attnbook.training import train
        >>> model, again = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> config = TrainingConfig(steps=3, learning_rate=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history = train(
        ...         model, lambda generator: (torch.randn(4, 2, generator=generator),), config,
        ...         loss=lambda model, x: (model(x).square().sum(), len(x)), folder=folder,
        ...     )
        ...     load_model(folder, again)
        >>> torch.equal(model.weight, again.weight)
        True
    """
    path = Path(folder) / "checkpoint.safetensors"
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no checkpoint", str(path))
    with _named(path):
        tensors, metadata = files.read(path)
        _check_format(path, metadata)
        _check_equal(path, json.loads(metadata["model"]), describe(model))
        model.load_state_dict(_below("model", tensors))


def describe(model: nn.Module) -> dict[str, str]:
    """Class and settings of each part, shape and type of each tensor.

    Example:
        >>> describe(nn.Linear(2, 1, bias=False))
        {'model': 'Linear(in_features=2, out_features=1, bias=False)',
         'weight': '(1, 2) torch.float32'}
    """
    parts = {
        name or "model": f"{type(part).__name__}({part.extra_repr()})"
        for name, part in model.named_modules()
    }
    return parts | {name: f"{tuple(t.shape)} {t.dtype}" for name, t in model.state_dict().items()}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever a file leads to that is no checkpoint, the error is one and names it."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} is not a whole checkpoint: {error!r}") from None


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix += "."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _as_json(config: TrainingConfig) -> str:
    """The configuration, with NumPy's numbers as Python's."""
    return json.dumps(dataclasses.asdict(config), default=lambda number: number.item())


def _decisive(config: str) -> dict[str, Any]:
    """The settings that the same steps depend on: only a cosine does on their number."""
    settings: dict[str, Any] = json.loads(config)
    if settings["schedule"] != "cosine":
        del settings["steps"]
    return settings


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    if (given := metadata.get("format")) != FORMAT:
        raise ValueError(
            f"{path} has the format {given!r}, expected {FORMAT!r}; another version of attnbook "
            "may read it"
        )


def _check_equal(path: Path, saved: dict[str, Any], current: dict[str, Any]) -> None:
    for name in [*saved, *current]:
        if saved.get(name) != current.get(name):
            raise ValueError(
                f"{path} is of another training: its {name} is {saved.get(name, 'absent')}, "
                f"and here it is {current.get(name, 'absent')}"
            )
