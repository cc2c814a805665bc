"""A typed grammar over the programs' primitives: trees that are programs, and ways to change them.

:mod:`.operations` lists what there is, :mod:`.trees` grows and changes trees, :mod:`.render` writes them as Python,
:mod:`.known` holds the paper's programs as trees.
"""
