"""A small Kubernetes for laptops and tests: an object store on SQLite and a runner that plays the control plane.

It runs commands as processes of this machine, not images, and isolates nothing. Production is Kubernetes.
"""
