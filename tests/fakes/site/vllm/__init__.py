"""Stands where vLLM would be imported, so that a study on the fake server needs no torch: ``PYTHONPATH`` names its
parent folder. Only what a benchmark client started by `tune` imports is here.
"""

__version__ = "0.32.0"
