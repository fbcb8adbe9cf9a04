"""EGGROLL: evolution strategies with low-rank perturbations of a linear head, in closed form.

The files up to ``score_space`` in the table of ``studies/heads/README.md`` know neither configurations nor collections;
``method`` and the files after it make them into methods of the trainer.

Source: Sarkar et al. 2025, "Evolution Strategies at the Hyperscale", arXiv 2511.16652.
"""
