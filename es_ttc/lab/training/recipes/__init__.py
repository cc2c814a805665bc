"""The recipes, one for each kind of training: ``dense``, ``nnn``, ``colt``, ``head``."""
