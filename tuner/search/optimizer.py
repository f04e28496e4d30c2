"""Ask and tell on Optuna, with everything kept in its storage as it happens."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from tuner.errors import InputError, RunError, StudyStopped
from tuner.model.candidate import Candidate, Exclusion
from tuner.model.earlier import EarlierRuns
from tuner.model.json import Json, Scalar
from tuner.model.judge import constraint_names, constraints
from tuner.model.outcome import Outcome, Status
from tuner.model.projection import value_of
from tuner.model.records import to_record
from tuner.model.space import Space
from tuner.model.workload import Limit, Objective, Workload
from tuner.ports import Past, Planner, Suggestion
from tuner.search.advisor import Advisor
from tuner.search.conditions import Conditions
from tuner.search.distributions import encodings, space_digest
from tuner.search.ledger import (
    ASKED,
    RECORD,
    TOLD,
    bind,
    objective_text,
    observation_of,
    owner,
    owner_alive,
    past_of,
    told_values,
)
from tuner.search.observations import Observation, facts_of, shrunk
from tuner.search.outcomes import complete_further, tell_sampler, worst_value
from tuner.search.samplers import SAMPLERS, make_sampler, needs_every_parameter, seed_for
from tuner.search.scalar import scalarised
from tuner.search.settings import resolved
from tuner.search.storage import open_storage, redacted, storage_errors
from tuner.search.tune_sampler import TuneSampler
from tuner.search.warmstart import Earlier, aligned, from_runs, from_studies, keep, kept

__all__ = ["OptunaOptimizer"]

_RECORD_LIMIT = 256 * 1024
"""Bytes of one trial's record in the storage; reports keep the full one in the trial's folder."""

_WEEDED = 12
"""So many candidates in one ask may turn out excluded or known before the sampler's taste is overruled."""


class OptunaOptimizer:
    """Implements :class:`tuner.ports.Optimizer`.

    Args:
        space: what varies.
        planner: what an assignment means, what cannot start, and what is the same.
        storage: see :func:`tuner.search.storage.open_storage`.
        study_name: the study in the storage; created if new, gone on with if it searches the same.
        sampler: ``tune`` (the default), ``tpe``, ``gp``, ``random``, ``qmc`` or ``nsga2``.
        objective, limits: what is made best, and what must be kept meanwhile.
        further: objectives beside it; the study then has one direction for each, and ``tune`` weighs them anew for
            every suggestion (:mod:`tuner.search.scalar`).
        seed: equal seeds and equal histories give equal suggestions.
        budget_trials: trials the study may take; sizes the space-filling start.
        budget_seconds: wall time that bounds the study (s), where that and not a number of trials does: ``tune`` then
            prefers gain per second, the more so the more time is left.
        workload: the traffic, where known: the load bounds the running batch.
        workload_certain: what measures sends this workload; a trial command may send anything.
        facts: what else identifies the study (versions, hardware); kept with it for later warm starts.
        warm_start: learn from like studies in the same storage, or from the study of that name (``tune`` only); their
            trials weigh little and are scaled by the two baselines. Likeness is judged by hardware, model, family,
            workload, and the facts ``vllm`` (version) and ``kind`` (of trials; another kind teaches nothing). Off,
            equal seeds give equal suggestions whatever else the storage holds. Decided when a study is made; a
            resumed one keeps what it began with.
        earlier: runs of another store to learn from instead.
        shared: other runners may work on this study now (a database server); their open trials are left alone.

    Raises:
        InputError: the storage cannot be used, the study belongs to another space, or the sampler is unknown.
        RunError: the storage is locked or does not answer.
    """

    def __init__(
        self,
        space: Space,
        planner: Planner,
        *,
        storage: str,
        study_name: str,
        sampler: str = "tune",
        objective: Objective | None = None,
        further: Sequence[Objective] = (),
        limits: Sequence[Limit] = (),
        seed: int = 0,
        budget_trials: int | None = None,
        budget_seconds: float | None = None,
        workload: Workload | None = None,
        workload_certain: bool = True,
        facts: Mapping[str, Json] | None = None,
        shared: bool | None = None,
        warm_start: bool | str = False,
        earlier: EarlierRuns | None = None,
    ) -> None:
        # What tells studies apart; the caller's facts (the version of vLLM, the kind of trials) come on top.
        known: dict[str, Json] = {
            "hardware": space.hardware.name,
            "model": space.model.name,
            "family": space.model.family,
            "workload": workload.name if workload is not None else None,
            **(facts or {}),
        }
        if sampler not in SAMPLERS:
            raise InputError(f"sampler {sampler!r}: unknown; choose one of {', '.join(SAMPLERS)}")
        self._planner = planner
        self._objective = objective or Objective()
        self._further = tuple(further)
        self._limits = tuple(limits)
        self._names = constraint_names(self._limits)
        self._sampler_name = sampler
        self._seed = seed
        self._startup = _startup_trials(budget_trials, len(space.parameters))
        self._encoded = encodings(space)
        self._conditions = Conditions(self._encoded, planner)
        self._url = storage
        self._shared = storage.startswith(("postgres", "mysql")) if shared is None else shared
        self._open: dict[int, Trial] = {}
        self._seen: dict[str, Observation] = {}
        self._history: list[Observation] = []
        self._read: set[int] = set()
        self._advisor = Advisor(
            space=space,
            encoded=self._encoded,
            conditions=self._conditions,
            planner=planner,
            objective=self._objective,
            workload=workload,
            startup=_filling_trials(budget_trials, len(space.parameters)),
            budget=budget_trials,
            budget_s=budget_seconds,
            certain=workload_certain,
        )
        # Each trial is one line of this program's own output; Optuna's would only repeat it.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with storage_errors(storage):
            self._study = optuna.create_study(
                storage=open_storage(storage),
                study_name=study_name,
                directions=["maximize" if item.maximize else "minimize" for item in self._objectives],
                load_if_exists=True,
            )
            bind(
                self._study,
                digest=space_digest(space, self._encoded),
                objective=self._objective,
                further=self._further,
                limits=self._limits,
                facts=known,
            )
            with _no_collection():
                self._refresh()
            self._start = Earlier()
            if (warm_start or earlier is not None) and sampler == "tune" and not self._further:
                self._start = self._warm_start(warm_start, earlier, known)

    @property
    def warm_start_note(self) -> str:
        """Which earlier trials this study learns from, in one line; empty where there are none."""
        return self._start.note

    def _warm_start(self, source: bool | str, runs: EarlierRuns | None, facts: Mapping[str, Json]) -> Earlier:
        """What was decided when the study was made, or the decision now while it is new."""
        decided = kept(self._study)
        if decided is not None or self._history:
            return decided or Earlier()
        if runs is not None:
            found = from_runs(runs, facts=facts, encoded=self._encoded, limits=self._limits)
        else:
            name = source if isinstance(source, str) else ""
            text = objective_text(self._objective)
            found = from_studies(
                self._study, objective=text, facts=facts, encoded=self._encoded, name=name, limits=self._limits
            )
        keep(self._study, found)
        return found

    # -- the port -------------------------------------------------------------------------------------------

    def ask(self, origin: str = "search", assignment: Mapping[str, Scalar] | None = None) -> Suggestion:
        """See :meth:`tuner.ports.Optimizer.ask`."""
        with storage_errors(self._url):
            self._refresh()
            if assignment is not None:
                return self._given(origin, assignment)
            return self._search(origin)

    def tell(self, number: int, outcome: Outcome, record: Mapping[str, Json]) -> None:
        """See :meth:`tuner.ports.Optimizer.tell`.

        Raises:
            RunError: the trial is not open: told before, or opened by another process.
        """
        trial = self._open.get(number)
        if trial is None:
            raise RunError(f"trial {number} is not open here: it was told before, or another process owns it")
        with storage_errors(self._url):
            self._close(trial, outcome, record)
            self._refresh()

    def past(self) -> Sequence[Past]:
        """See :meth:`tuner.ports.Optimizer.past`. Leftovers have the status ``interrupted`` and no record."""
        with storage_errors(self._url):
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)):
                if trial.number not in self._open and not owner_alive(trial, elsewhere=self._shared):
                    self._close_leftover(trial)
            self._refresh()
            return [past_of(trial) for trial in self._study.get_trials(deepcopy=False) if trial.state.is_finished()]

    def expected_gain(self) -> float | None:
        """See :meth:`tuner.ports.Optimizer.expected_gain`. Only the ``tune`` sampler can say.

        With several objectives nobody can: the last suggestion's gain was one of one weighting.
        """
        if self._sampler_name != "tune" or self._further:
            return None
        if not self._advisor.has_proposed:
            self._recall()
        return self._advisor.expected_gain(self._history)

    def plainer(self, assignment: Mapping[str, Scalar]) -> Mapping[str, Scalar] | None:
        """See :meth:`tuner.ports.Optimizer.plainer`. Only ``tune`` with one objective has a model to ask."""
        if self._sampler_name != "tune" or self._further:
            return None
        return self._advisor.plainer(self._experience(self._history), assignment, self._avoided())

    def _recall(self) -> None:
        """After a resume: what the last suggestion's model expected, so that the search ends where it would have."""
        asked = [index for index, item in enumerate(self._history) if item.origin == "search" and _taught(item)]
        if asked:
            before = self._history[: asked[-1]]
            seed = seed_for(self._seed, sum(_taught(item) for item in before))
            self._advisor.propose(self._experience(before), set(), [], seed=seed)

    def _experience(self, history: Sequence[Observation]) -> list[Observation]:
        """What earlier studies measured, by the scale of this one, and its own trials."""
        return [*aligned(self._start.trials, history), *history]

    # -- asking ---------------------------------------------------------------------------------------------

    def _given(self, origin: str, assignment: Mapping[str, Scalar]) -> Suggestion:
        candidate = (
            self._planner.baseline() if origin == "baseline" else self._planner.render(assignment, origin=origin)
        )
        trial = self._new_trial(candidate, assignment, origin)
        return Suggestion(number=trial.number, assignment=dict(assignment), origin=origin)

    def _search(self, origin: str) -> Suggestion:
        for _ in range(_WEEDED):
            trial = self._sampled()
            candidate = self._planner.render(self._assignment_of(trial), origin=origin)
            verdict = self._verdict(candidate)
            if verdict is None:
                self._mark_asked(trial, candidate, candidate.assignment, origin)
                return Suggestion(number=trial.number, assignment=dict(candidate.assignment), origin=origin)
            self._weed(trial, candidate, verdict, origin)
            self._refresh()
        # The sampler is stuck among what is known or excluded: any new candidate teaches more.
        fresh = self._advisor.any_new(self._avoided(), seed=seed_for(self._seed, self._closed))
        if fresh is None:
            raise StudyStopped("nothing feasible is left to try: every candidate found is excluded or was tried")
        candidate = self._planner.render(fresh, origin=origin)
        trial = self._new_trial(candidate, candidate.assignment, origin)
        return Suggestion(number=trial.number, assignment=dict(candidate.assignment), origin=origin, note="random")

    def _sampled(self) -> Trial:
        sampler = self._sampler()
        self._study.sampler = sampler
        try:
            trial = self._study.ask()
        except StudyStopped:
            self._drop_unasked()
            raise
        every = needs_every_parameter(self._sampler_name)
        decided: dict[str, Scalar] = {}
        for name, item in self._encoded.items():
            if isinstance(sampler, TuneSampler) and sampler.leaves_away(name):
                continue
            if every or self._conditions.active(name, decided):
                decided[name] = item.decode(trial._suggest(name, item.distribution))  # noqa: SLF001
        return trial

    def _drop_unasked(self) -> None:
        """Close the trial that Optuna opened before its sampler found that nothing is left."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if ASKED not in trial.user_attrs and trial.number not in self._open:
                self._finish(trial.number, [])

    def _sampler(self) -> BaseSampler:
        seed = seed_for(self._seed, self._closed)
        if self._sampler_name == "tune":
            history = self._experience(self._history)
            if self._further:
                history = scalarised(history, self._objectives, seed=seed, turn=self._closed)
            return TuneSampler(self._advisor, history, self._avoided(), self._pending(), seed=seed)
        return make_sampler(self._sampler_name, seed=seed, fixed_seed=self._seed, startup=self._startup)

    def _assignment_of(self, trial: Trial) -> dict[str, Scalar]:
        return {name: self._encoded[name].decode(value) for name, value in trial.params.items()}

    def _verdict(self, candidate: Candidate) -> Exclusion | Observation | None:
        """Why a candidate is not worth a launch: a rule, or an earlier trial of the same."""
        known = self._seen.get(self._planner.identity(candidate))
        return known if known is not None else self._planner.exclusion(candidate)

    def _weed(self, trial: Trial, candidate: Candidate, verdict: Exclusion | Observation, origin: str) -> None:
        """Close a trial that is not to be launched, telling the sampler what is known of it."""
        self._mark_asked(trial, candidate, candidate.assignment, origin)
        if isinstance(verdict, Exclusion):
            outcome = Outcome(
                candidate=candidate,
                status=Status.EXCLUDED,
                exclusion=verdict,
                constraints=constraints(self._limits, exclusion=verdict),
            )
            self._close(trial, outcome, to_record(outcome))
            return
        outcome = Outcome(
            candidate=candidate,
            status=Status.DUPLICATE,
            objective=verdict.value,
            constraints=verdict.violations,
            twin=verdict.number,
        )
        self._close(trial, outcome, {}, verdict.further)

    def _new_trial(self, candidate: Candidate, assignment: Mapping[str, Scalar], origin: str) -> Trial:
        """Open a trial with a given assignment, in one write, as the sampler would have spelled it."""
        internal: dict[str, Scalar] = {}
        for name, item in self._encoded.items():
            value = assignment.get(name, item.default)
            if name not in assignment and not self._conditions.active(name, assignment):
                value = item.at(0.5) if needs_every_parameter(self._sampler_name) else None
            encoded = None if value is None else item.encode(value)
            if encoded is None and needs_every_parameter(self._sampler_name):
                # Not known what runs: the middle misleads least, and the parameter stays in the sampler's model.
                encoded = item.encode(item.at(0.5))
            if encoded is not None:
                internal[name] = encoded
        template = create_trial(
            state=TrialState.RUNNING,
            params=internal,
            distributions={name: self._encoded[name].distribution for name in internal},
            user_attrs={ASKED: self._asked(candidate, assignment, origin)},
        )
        if isinstance(self._study.sampler, TuneSampler):
            # What is given is no question to it: it would work out a candidate, and stop where none is left.
            self._study.sampler = RandomSampler(seed=self._seed)
        trial_id = self._study._storage.create_new_trial(self._study._study_id, template_trial=template)  # noqa: SLF001
        trial = Trial(self._study, trial_id)
        self._open[trial.number] = trial
        return trial

    def _mark_asked(self, trial: Trial, candidate: Candidate, assignment: Mapping[str, Scalar], origin: str) -> None:
        trial.set_user_attr(ASKED, self._asked(candidate, assignment, origin))
        self._open[trial.number] = trial

    def _asked(self, candidate: Candidate, assignment: Mapping[str, Scalar], origin: str) -> dict[str, Json]:
        return {
            "assignment": dict(assignment),
            "origin": origin,
            "identity": self._planner.identity(candidate),
            "owner": owner(),
        }

    # -- telling --------------------------------------------------------------------------------------------

    def _close(
        self,
        trial: Trial,
        outcome: Outcome,
        record: Mapping[str, Json],
        further: Sequence[float | None] | None = None,
    ) -> None:
        measured = [item.value for item in self._history if item.started and item.value is not None]
        worst = worst_value(measured, maximize=self._objective.maximize)
        told = tell_sampler(outcome, names=self._names, worst=worst)
        facts = facts_of(outcome)
        if outcome.server is not None:
            facts["resolved"] = resolved(outcome.server.effective, outcome.candidate.assignment, self._encoded)
        if told.measured:
            facts["objective"] = told.value
        values = [told.value] if told.complete else []
        if self._further and told.complete:
            if further is None:
                further = [value_of(outcome, item.metric) for item in self._further]
            seen = [past.further for past in self._history]
            values += complete_further(further if told.measured else (), self._further, seen)
            facts["values"] = list(values)
            if told.measured:
                facts["further"] = list(further)
        if told.complete:
            facts["value"] = told.value
            # By name: a database gives attributes back in its own order, and GPSampler goes by position.
            for name in sorted(self._names):
                trial.set_constraint(name, told.constraints[name])
        trial.set_user_attr(RECORD, shrunk(record, _RECORD_LIMIT))
        # Written last: a process killed after this has lost nothing, see _close_leftover.
        trial.set_user_attr(TOLD, facts)
        self._finish(trial.number, values)
        del self._open[trial.number]

    def _close_leftover(self, trial: FrozenTrial) -> None:
        """Close what a killed process left: with its outcome if that was written, as FAIL if not."""
        self._finish(trial.number, told_values(trial))

    def _finish(self, number: int, values: Sequence[float | None]) -> None:
        """Close a trial with a value for every objective, or as FAIL."""
        if len(known := [value for value in values if value is not None]) == 1 + len(self._further):
            self._study.tell(number, known)
        else:
            self._study.tell(number, state=TrialState.FAIL)

    # -- memory ---------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Take in trials closed since, by this process or another."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.number in self._read or not trial.state.is_finished():
                continue
            self._read.add(trial.number)
            observation = observation_of(trial)
            if observation is None:
                continue
            self._history.append(observation)
            if self._settled(observation):
                self._seen.setdefault(observation.identity, observation)

    def _settled(self, observation: Observation) -> bool:
        """Whether running the same again would be paying twice."""
        if observation.status is Status.DISTURBED:
            same = [item for item in self._history if item.identity == observation.identity]
            return len(same) >= 3  # the machine or not: three times is enough
        return observation.status is not Status.INTERRUPTED

    @property
    def _closed(self) -> int:
        """Trials that taught something; killed and disturbed ones leave the sequence of suggestions alone."""
        return sum(_taught(item) for item in self._history)

    def _avoided(self) -> set[str]:
        return set(self._seen) | self._pending_identities()

    def _pending_identities(self) -> set[str]:
        return {str(trial.user_attrs[ASKED]["identity"]) for trial in self._running()}

    def _pending(self) -> list[dict[str, Scalar]]:
        return [dict(trial.user_attrs[ASKED]["assignment"]) for trial in self._running()]

    def _running(self) -> Iterator[FrozenTrial]:
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if ASKED in trial.user_attrs:
                yield trial

    @property
    def _objectives(self) -> tuple[Objective, ...]:
        return (self._objective, *self._further)

    @property
    def where(self) -> str:
        """The storage's address without its password, for messages."""
        return redacted(self._url)


def _taught(item: Observation) -> bool:
    return item.status not in (Status.INTERRUPTED, Status.DISTURBED)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Reading thousands of trials makes millions of objects that all stay: collecting meanwhile doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _filling_trials(budget: int | None, parameters: int) -> int:
    """Trials that fill a space of which the default search knows nothing: a quarter of the budget."""
    return max(3, min(8 if budget is None else budget // 4, parameters, 9))


def _startup_trials(budget: int | None, parameters: int) -> int:
    """Trials that fill the space before a model speaks: a sixth of the budget, as many as the space has use for."""
    wanted = 8 if budget is None else budget // 6
    return max(3, min(wanted, parameters, 12))
