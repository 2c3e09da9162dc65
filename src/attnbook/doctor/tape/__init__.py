"""What ran in a call, and what equals what."""
