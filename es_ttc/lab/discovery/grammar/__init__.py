"""A typed grammar over the programs' primitives: programs as trees, and operations that change them.

:mod:`.operations` lists the operations, :mod:`.trees` generates and changes trees, and writes them as Python.
"""
