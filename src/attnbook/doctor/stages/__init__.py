"""One stage is not the standard one: what is read off the operations of a call."""
