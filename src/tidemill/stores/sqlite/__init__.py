"""The store of one machine: a SQLite file that any number of its processes share."""
