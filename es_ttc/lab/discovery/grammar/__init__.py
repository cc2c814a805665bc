"""A typed grammar over the programs' primitives: programs as trees, and operations that change them."""
