"""The commands behind the Makefile: execute chapters, make records, render, print."""
