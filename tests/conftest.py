"""What every suite shares: random tests draw the same examples every time and have no deadline of their own."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
