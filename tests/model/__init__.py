"""A model of the kernel, written from the specification alone, and random walks that compare the kernel with it."""
