"""The kubelet: pods of all nodes as processes of this machine."""
