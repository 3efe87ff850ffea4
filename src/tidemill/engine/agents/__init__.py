"""What agents need of the engine: the port of their tools, and the composite tools of a tenant."""
