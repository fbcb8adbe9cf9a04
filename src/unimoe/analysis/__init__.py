"""From result files to a verdict: interference, significance, tables, figures, report.

Reads what evaluation wrote and nothing else; no torch, no models, no collections. ``unimoe.analysis.compare`` has the
public functions.
"""
