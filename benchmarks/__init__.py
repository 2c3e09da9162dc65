"""Our attention and our training step compared with other people's: speed, and the same numbers."""
