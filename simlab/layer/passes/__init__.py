"""What a plan makes of the operations of a layer: functions from a list to a list."""
