"""Evaluation by MTEB: names of tasks, prefixes of texts, and the run of one or several tasks."""
