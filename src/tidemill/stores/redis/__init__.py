"""The Redis store (see `store.py`); Valkey serves as well."""
