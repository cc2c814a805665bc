"""The sandbox: programs run in a process of their own that can compute and do nothing else.

:mod:`.process` starts the child and answers its requests, :mod:`.child` runs in it, :mod:`.confinement` removes its
rights. Both sides use :mod:`.wire` and :mod:`.shared`: small flat JSON messages, texts as bytes, arrays in shared
memory. :mod:`.process_pool` keeps processes for programs that a gateway serves.

The child may use some thirty system calls (memory, its one socket, its own end). Opening a file, a socket or a process,
signalling another process, changing its limits: each of these kills it. This needs no privilege and works as root, in
containers too. It does not protect against faults of the kernel in the allowed calls, or against side channels (time,
caches).
"""
