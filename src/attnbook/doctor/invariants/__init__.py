"""What every right module keeps, tried by changing its inputs."""

from attnbook.doctor.invariants.cached import cache as cache
from attnbook.doctor.invariants.calls import deterministic as deterministic
from attnbook.doctor.invariants.calls import finite as finite
from attnbook.doctor.invariants.calls import half_precision as half_precision
from attnbook.doctor.invariants.calls import memory as memory
from attnbook.doctor.invariants.calls import settings as settings
from attnbook.doctor.invariants.calls import untouched as untouched
from attnbook.doctor.invariants.learning import dropout as dropout
from attnbook.doctor.invariants.learning import gradients as gradients
from attnbook.doctor.invariants.learning import start as start
from attnbook.doctor.invariants.learning import train_and_eval as train_and_eval
from attnbook.doctor.invariants.padded import empty_rows as empty_rows
from attnbook.doctor.invariants.padded import padding as padding
from attnbook.doctor.invariants.reach import batch as batch
from attnbook.doctor.invariants.reach import future as future
from attnbook.doctor.invariants.reach import mixing as mixing
from attnbook.doctor.invariants.reach import order as order
from attnbook.doctor.invariants.reach import order_of_sequences as order_of_sequences
from attnbook.doctor.invariants.reach import prefix as prefix
