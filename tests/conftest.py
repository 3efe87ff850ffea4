"""What every suite shares: random tests draw the same examples every time and have no deadline of their own."""

import os
import signal

from hypothesis import settings

# Suites start hundreds of processes. Where the environment forbids to keep what was compiled, as images of containers
# do, each of them would compile all modules anew and do little else.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell without job control, as of a script or of CI, starts `make test &` with interrupts ignored, and every child
# inherits that: tests that interrupt a command would wait for it in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
