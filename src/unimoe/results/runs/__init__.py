"""Runs, from files or dictionaries, scored and made into results, so that they are judged as evaluations are."""
