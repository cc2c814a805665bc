"""Programs run in a process of their own that can compute and nothing else: candidates of a search, and promoted ones.

:mod:`.process` starts it and answers what it asks, :mod:`.child` is what runs in it, :mod:`.lockdown` takes everything
away from it, :mod:`.wire` and :mod:`.shared` are what both sides speak: small flat JSON messages, texts as bytes,
arrays by shared memory. :mod:`.hosting` keeps processes for programs that a gateway serves.

The child keeps some thirty system calls (memory, its one socket, its own end). Opening a file, a socket or a process,
signalling another process, changing its limits: each of them ends it. This needs no privilege and works as root, in
containers too. What it does not guard against: faults of the kernel in those calls, and side channels (time, caches).
"""
