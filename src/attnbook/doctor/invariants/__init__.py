"""Derivatives and learning, and why one token depends on another."""
