"""Two calls that must agree, and do not."""
