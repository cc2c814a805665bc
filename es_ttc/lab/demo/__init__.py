"""The demonstration: collections that every machine has or can make."""
