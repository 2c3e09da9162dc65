"""Experiments too long for a chapter's minute: see attnbook.book.studies."""
