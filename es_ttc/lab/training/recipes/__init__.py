"""What is trained, one kind a module: ``dense``, ``nnn``, ``colt``, ``head``."""
