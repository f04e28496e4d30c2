"""What both Monte Carlo samplers of the search share."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["systematic"]

Array: TypeAlias = NDArray[np.float64]


def systematic(weight: Array) -> NDArray[np.int64]:
    """Which samples go on, in proportion to their weight: evenly spaced places, without luck of its own."""
    places = (np.arange(len(weight)) + 0.5) / len(weight)
    return np.asarray(np.minimum(np.searchsorted(np.cumsum(weight / weight.sum()), places), len(weight) - 1))
