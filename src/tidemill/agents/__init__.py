"""Agents: the tools that a model may call, the loop that calls them, and the limits on both."""
