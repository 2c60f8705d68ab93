"""What controllers decide: objects in, actions out, nothing else."""
