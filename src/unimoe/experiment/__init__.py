"""The main job: an experiment as a resumable sequence of trainings and evaluations, its estimate and its record."""
