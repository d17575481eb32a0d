"""What is asked for: model, cluster and plan, each checked when it is made, and the catalogue that
comes with simlab."""
