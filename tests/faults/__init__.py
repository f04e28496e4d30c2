"""The fault campaign: `python -m tests.faults.campaign` (also `make faults`)."""
