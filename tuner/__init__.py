"""`tune`: search vLLM's serving settings on real hardware, and prove the winner."""

__version__ = "0.1.0"
