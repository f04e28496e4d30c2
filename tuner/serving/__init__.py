"""vLLM processes: start, watch, read, classify, tear down."""
