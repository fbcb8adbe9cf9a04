"""Gates: decisions registered in a file before there are scores, and judged on results when there are.

``definitions`` reads the file, ``scores`` finds the numbers, ``findings`` computes, ``judging`` decides,
``wording`` and ``output`` say it.
"""
