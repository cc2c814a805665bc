"""Enrichment jobs: their records in the engine, and the workers that process them (Celery on Redis).

The engine holds the state of every job. Redis holds only messages that name a partition, so losing it loses nothing,
and commands that submit, pause or cancel write only to the engine.
"""
