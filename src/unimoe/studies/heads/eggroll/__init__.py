"""EGGROLL: evolution strategies with low-rank perturbations of a linear head, in closed form.

Source: Sarkar et al. 2025, "Evolution Strategies at the Hyperscale", arXiv 2511.16652.
"""
