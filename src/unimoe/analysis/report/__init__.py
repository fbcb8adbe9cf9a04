"""The analysis on disk: ``{output_dir}/analysis/report.html`` and ``report.md``, with tables and figures beside them.

``contents`` gathers, ``markdown`` and ``html`` say the same twice, ``output`` writes.
"""

from unimoe.analysis.report.output import SUBFOLDER, write_figures, write_report, write_tables

__all__ = ["SUBFOLDER", "write_figures", "write_report", "write_tables"]
