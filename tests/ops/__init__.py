"""What operators do to a running deployment: upgrade it, watch it, run it in a container, take its data away."""
