"""The arms of an experiment as a study: their settings are chosen on dev before their seeds are trained."""
