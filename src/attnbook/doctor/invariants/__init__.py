"""Derivatives and learning, and why one token depends on another."""

from attnbook.doctor.invariants.derivatives import derivatives as derivatives
from attnbook.doctor.invariants.learning import dropout as dropout
from attnbook.doctor.invariants.learning import gradients as gradients
from attnbook.doctor.invariants.learning import start as start
from attnbook.doctor.invariants.learning import train_and_eval as train_and_eval
