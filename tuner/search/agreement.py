"""How far earlier studies are to be believed, by how well they foretell this study's own trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.search.encoder import Encoder
from tuner.search.gaussian import Process
from tuner.search.observations import Observation

__all__ = ["Agreement"]

Array: TypeAlias = NDArray[np.float64]

_FEWEST = 3
"""Own trials beside the baseline before anything is judged."""
_FEWEST_EARLIER = 4
_LATEST = 60
"""Own trials that are looked back at."""
_GOOD, _BAD = 0.5, 1.0
"""Error of the forecasts over the error of no forecast at all: believed in full below, not at all above."""
_LEAST = 0.03


@dataclass
class Agreement:
    """Judges the earlier trials of one study again after every own trial; the model of them is fitted once."""

    encoder: Encoder
    _process: Process | None = None
    _of: tuple[int, object] | None = None

    def judged(self, history: Sequence[Observation], *, maximize: bool) -> list[Observation]:
        """The history with the weights of earlier trials scaled by how right they were; dropped where wrong."""
        earlier = [item for item in history if item.weight < 1]
        own = [item for item in history if item.weight >= 1]
        measured = [item for item in own if item.started and (item.value or 0.0) > 0]
        if not earlier or len(measured) < _FEWEST + 1:
            return list(history)
        factor = self._factor(earlier, measured[-_LATEST:], maximize=maximize)
        kept = [replace(item, weight=item.weight * factor) for item in earlier if item.weight * factor >= _LEAST]
        return [*kept, *own]

    def _factor(self, earlier: Sequence[Observation], own: Sequence[Observation], *, maximize: bool) -> float:
        if len(earlier) < _FEWEST_EARLIER or any((item.value or 0.0) <= 0 for item in earlier):
            return 1.0
        sign = 1.0 if maximize else -1.0
        known = (len(earlier), self.encoder.heard)
        if self._process is None or self._of != known:
            self._process, self._of = self._fitted(earlier, sign), known
        # Ratios to a baseline differ between machines by a factor that says nothing of the order.
        level = np.median([np.log(item.value or 1.0) for item in earlier])
        y = sign * np.log([item.value or 1.0 for item in own])
        forecast, _ = self._process.predict(self._inputs(own))
        forecast = forecast + sign * level
        wrong = (y - forecast) - np.median(y - forecast)
        blind = y - np.median(y)
        # Bad trials decide nothing: how bad they are need not be foretold.
        top = y > y.max() - 1.2
        ratio = float(np.sqrt(np.mean(wrong[top] ** 2)) / max(float(np.sqrt(np.mean(blind[top] ** 2))), 0.02))
        return float(np.clip((_BAD - ratio) / (_BAD - _GOOD), 0.0, 1.0))

    def _fitted(self, earlier: Sequence[Observation], sign: float) -> Process:
        y = sign * np.log([item.value or 1.0 for item in earlier])
        return Process.fit(
            self._inputs(earlier),
            np.maximum(y - np.median(y), -1.2),
            self.encoder.input_labels,
            scale_floor=0.05,
            noise_guess=0.03,
            extra=np.zeros(len(y)),
            importance=self.encoder.input_importance,
        )

    def _inputs(self, items: Sequence[Observation]) -> Array:
        return self.encoder.inputs(self.encoder.rows([item.assignment for item in items]), None)
