"""The training loop, checkpoints that resume bit for bit, one process or many."""

from attnbook.training.checkpoints import load_model
from attnbook.training.config import TrainingConfig, decayed
from attnbook.training.history import History
from attnbook.training.loop import train
from attnbook.training.processes import Processes, processes

__all__ = [
    "History",
    "Processes",
    "TrainingConfig",
    "decayed",
    "load_model",
    "processes",
    "train",
]
