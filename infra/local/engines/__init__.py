"""Engines of the embedded demo: a real one, and a simulated one for many instances and faults."""
