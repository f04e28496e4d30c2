"""A Gaussian process for few points in many mixed dimensions: main effects, their pairs, and the rest.

The covariance is a function of one weighted sum of per-dimension similarities, S = Σ aₚ² kₚ:
S (main effects) + ρ₂ S² (pairs of what matters alone) + ρ₃ exp(-λ(Σ aₚ² - S)) (anything smooth). Sharing the weights
between the three keeps the number of hyperparameters at one per dimension; they are set by maximum a posteriori.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize

__all__ = ["Process", "similarities"]

Array: TypeAlias = NDArray[np.float64]

_DECAY = 3.0
_PRIOR_SD = 1.0
_JITTER = 1e-6
_LONG, _SHORT, _SLOW = 0.5, 0.2, 0.3
"""How far numbers are alike, in shares of their range, and the part of it that changes slowly: a limit half-way between
what was tried (the cache, the largest captured graph) must stay thinkable."""


def similarities(a: Array, b: Array, labels: NDArray[np.bool_]) -> Array:
    """Per-dimension similarity, shape (dimensions, rows of a, rows of b).

    Labels are alike or not. Numbers (0 to 1) fade with distance; negative codes mark "absent" and are labels.
    """
    left, right = a.T[:, :, None], b.T[:, None, :]
    same = left == right
    distance = np.abs(left - right)
    smooth = _SLOW * np.exp(-0.5 * (distance / _LONG) ** 2)
    scaled = np.sqrt(3.0) * distance / _SHORT
    smooth += (1 - _SLOW) * (1 + scaled) * np.exp(-scaled)
    discrete = labels[:, None, None] | (left < 0) | (right < 0)
    return np.where(discrete, same.astype(float), smooth)


@dataclass
class Process:
    """Fitted to standardised targets. Use :meth:`fit`, then :meth:`predict`."""

    x: Array
    labels: NDArray[np.bool_]
    weights: Array
    pairs: float
    rest: float
    noise: float
    mean: float
    scale: float
    evidence: float
    target: Array
    extra: Array
    _chol: tuple[Array, bool]
    _alpha: Array

    @classmethod
    def fit(
        cls,
        x: Array,
        y: Array,
        labels: NDArray[np.bool_],
        *,
        scale_floor: float,
        noise_guess: float,
        extra: Array,
        importance: Array | None = None,
    ) -> Process:
        """Fit to ``y`` at ``x``.

        Args:
            x: rows of numbers from 0 to 1, label codes, or negative codes for absent.
            y: targets.
            labels: which columns are labels.
            scale_floor: least spread that is believed possible, however alike the first targets are.
            noise_guess: standard deviation of a repeated measurement.
            importance: how much each dimension is expected to matter beside the others (1 where nothing is known).
            extra: additional noise variance per row, relative to the noise (0 for a plain row).
        """
        mean = float(np.mean(y))
        scale = max(float(np.std(y)), scale_floor)
        target = (y - mean) / scale
        stack = similarities(x, x, labels)
        dimensions = len(stack)
        share = np.ones(dimensions) if importance is None else importance
        centre = np.concatenate(
            [
                np.log(share / share.sum()) - 0.3,
                np.log([0.3, 0.3]),
                [2 * np.log(noise_guess / scale)],
            ]
        )
        flat = stack.reshape(dimensions, -1)

        def objective(u: Array) -> tuple[float, Array]:
            return _negative_evidence(u, centre, flat, target, extra)

        bounds = [(value - 5, value + 4) for value in centre]
        solved = minimize(objective, centre, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30})
        u = solved.x
        weights = np.exp(u[:dimensions])
        pairs, rest, noise = (float(value) for value in np.exp(u[dimensions:]))
        covariance = _covariance(_weighted(weights, stack), float(weights.sum()), pairs, rest)
        covariance[np.diag_indices_from(covariance)] += noise * (1 + extra) + _JITTER
        chol = cho_factor(covariance, lower=True)
        return cls(
            x=x,
            labels=labels,
            weights=weights,
            pairs=pairs,
            rest=rest,
            noise=float(np.sqrt(noise)) * scale,
            mean=mean,
            scale=scale,
            evidence=-float(solved.fun) - len(y) * float(np.log(scale)),
            target=target,
            extra=extra,
            _chol=chol,
            _alpha=cho_solve(chol, target),
        )

    def with_targets(self, targets: Array) -> Process:
        """The same process for other targets at the same points; hyperparameters stay."""
        target = (targets - self.mean) / self.scale
        return replace(self, target=target, _alpha=cho_solve(self._chol, target))

    def means(self, x: Array, several: Sequence[Process]) -> tuple[Array, Array]:
        """Means of processes that differ in their targets alone, shape (processes, rows), and the deviation."""
        cross, deviation = self._cross(x)
        alphas = np.column_stack([process._alpha for process in several])  # noqa: SLF001  (same class)
        return (self.mean + self.scale * (cross @ alphas)).T, deviation

    def extended(self, x: Array, y: Array) -> Process:
        """The same process, having seen ``y`` at ``x`` too; hyperparameters stay."""
        rows, target = np.vstack([self.x, x]), np.append(self.target, (y - self.mean) / self.scale)
        extra = np.append(self.extra, np.zeros(len(x)))
        shared = _weighted(self.weights, similarities(rows, rows, self.labels))
        covariance = _covariance(shared, self.weights.sum(), self.pairs, self.rest)
        covariance[np.diag_indices_from(covariance)] += (self.noise / self.scale) ** 2 * (1 + extra) + _JITTER
        chol = cho_factor(covariance, lower=True)
        alpha = cho_solve(chol, target)
        return replace(self, x=rows, target=target, extra=extra, _chol=chol, _alpha=alpha)

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the noiseless target."""
        cross, deviation = self._cross(x)
        return self.mean + self.scale * (cross @ self._alpha), deviation

    def _cross(self, x: Array) -> tuple[Array, Array]:
        """Covariance of ``x`` with what was seen, and the standard deviation at ``x``."""
        total = self.weights.sum()
        shared = _weighted(self.weights, similarities(x, self.x, self.labels))
        cross = _covariance(shared, total, self.pairs, self.rest)
        solved = solve_triangular(self._chol[0], cross.T, lower=True)
        prior = total + self.pairs * total**2 + self.rest
        variance = np.maximum(prior - np.sum(solved**2, axis=0), 1e-10)
        return cross, self.scale * np.sqrt(variance)


def _weighted(weights: Array, stack: Array) -> Array:
    return np.asarray(np.tensordot(weights, stack, axes=1), dtype=np.float64)


def _covariance(shared: Array, total: float, pairs: float, rest: float) -> Array:
    return np.asarray(shared + pairs * shared**2 + rest * np.exp(-_DECAY * (total - shared)))


def _negative_evidence(u: Array, centre: Array, flat: Array, target: Array, extra: Array) -> tuple[float, Array]:
    """Negative log posterior of the hyperparameters and its gradient."""
    dimensions, count = len(flat), len(target)
    weights = np.exp(u[:dimensions])
    pairs, rest, noise = (float(value) for value in np.exp(u[dimensions:]))
    shared = (weights @ flat).reshape(count, count)
    total = weights.sum()
    far = rest * np.exp(-_DECAY * (total - shared))
    covariance = shared + pairs * shared**2 + far
    covariance[np.diag_indices_from(covariance)] += noise * (1 + extra) + _JITTER
    chol = cho_factor(covariance, lower=True)
    alpha = cho_solve(chol, target)
    prior = (u - centre) / _PRIOR_SD
    value = 0.5 * float(target @ alpha) + float(np.log(np.diag(chol[0])).sum()) + 0.5 * float(prior @ prior)
    inner = 0.5 * (np.outer(alpha, alpha) - cho_solve(chol, np.eye(count)))
    slope = inner * (1 + 2 * pairs * shared + _DECAY * far)
    common = _DECAY * float(np.sum(inner * far))
    gradient = np.concatenate(
        [
            weights * (flat @ slope.ravel() - common),
            [pairs * float(np.sum(inner * shared**2)), float(np.sum(inner * far))],
            [noise * float(np.sum(np.diag(inner) * (1 + extra)))],
        ]
    )
    return value, -gradient + prior / _PRIOR_SD
