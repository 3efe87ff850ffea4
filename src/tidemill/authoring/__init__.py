"""Workflows written in Python: decorated functions become the same documents as YAML."""
