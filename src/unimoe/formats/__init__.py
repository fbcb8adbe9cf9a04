"""Readers of what people have: runs, judgments and tables, as files of many makes and as objects of Python.

Files are told apart by their content and columns by their names, never by how many columns there are.
"""
