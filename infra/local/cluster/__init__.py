"""A small Kubernetes for laptops and tests: an object store on SQLite and a runner that plays the control plane.

    store       the API: verbs, conflicts, apply, selectors, watch      admission, transitions, ownership, database
    control     one round of decisions, all pure                        scheduler, workloads/, nodes
    kubelet/    pods as processes of this machine                       lifecycle (pure), containers, processes, probes
    runner      takes in changes, asks control and kubelet, writes what they decided

It runs commands, not images, as the user who started it, and isolates nothing: mounts are rewritten paths, readOnly
is not enforced, Services have endpoints but no address or name of their own. There is no autoscaler, no pod
affinity and no preemption. Production is Kubernetes.

State, in one directory: `store.db`, `nodes/<node>/` (the file system of a node), `pods/<uid>/` (logs, volumes, and
in `run/` what is needed to find the processes again). A node dies or reboots on request: see the annotations in nodes.
"""
