"""What stands below `/_ttc/` and is no search: scores and features for a plugin, texts to rerank, jobs."""
