"""What every suite shares: random tests draw the same examples every time and have no deadline of their own."""

import os

from hypothesis import settings

# Suites start hundreds of processes. Where the environment forbids to keep what was compiled, as images of containers
# do, each of them would compile all modules anew and do little else.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
