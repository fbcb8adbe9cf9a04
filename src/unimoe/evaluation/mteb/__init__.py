"""Evaluation through MTEB: names, prompts, tasks and the run of each."""
