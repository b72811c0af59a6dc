"""All that knows Lightning: trainers, launchers and the cluster environment of a world."""
