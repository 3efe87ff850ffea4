"""Tidemill: a durable workflow engine for Python."""
