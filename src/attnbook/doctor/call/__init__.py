"""The module, the call, what its author claims, and how it is left as it was."""
