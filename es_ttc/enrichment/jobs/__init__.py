"""Jobs over a corpus: their records in the engine, and the workers that do them (Celery on Redis).

The engine's state is the truth. Redis holds messages that say no more than "look at this part of this job", so losing
it loses nothing, and commands that submit, pause or cancel write to the engine alone.
"""
