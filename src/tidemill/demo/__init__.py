"""A store full of living workflows, so that the page shows everything in the first minute; all of it stays offline."""
