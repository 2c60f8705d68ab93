"""An event-driven model of a fleet: replays a trace against routing policies, the router's own objects among them.

Simulated time only; every run is decided by its seed.
"""
