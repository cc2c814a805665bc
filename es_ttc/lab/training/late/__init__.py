"""Fine-tuning a backbone into a late-interaction model; needs torch and sentence-transformers."""
