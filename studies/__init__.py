"""Experiments too long for a chapter's minute: see book.evidence.records."""
