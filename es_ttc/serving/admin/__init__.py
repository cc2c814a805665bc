"""The endpoints below `/_ttc/` other than search: scores and features for a plugin, reranking of texts, jobs."""
