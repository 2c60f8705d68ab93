"""`warmpath demo`: the main job, for real, on this machine."""
