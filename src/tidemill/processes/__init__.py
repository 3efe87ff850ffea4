"""Child processes that can be killed, whose output is captured, and that never outlive this process."""
