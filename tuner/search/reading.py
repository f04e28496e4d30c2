"""Reading a study back without its space: for reports and exports."""

from __future__ import annotations

from collections.abc import Sequence

import optuna

from tuner.errors import InputError
from tuner.ports import Past
from tuner.search.ledger import ASKED, past_of
from tuner.search.storage import open_storage, redacted, storage_errors

__all__ = ["read_trials"]


def read_trials(url: str, study: str) -> Sequence[Past]:
    """Every closed trial of a study, in order. Nothing is written.

    Raises:
        InputError: the storage has no such study, or cannot be read.
        RunError: the storage is locked or does not answer.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with storage_errors(url):
        try:
            loaded = optuna.load_study(study_name=study, storage=open_storage(url))
        except KeyError:
            raise InputError(f"{redacted(url)}: holds no study {study!r}; give --study or --storage") from None
        trials = loaded.get_trials(deepcopy=False)
    return [past_of(trial) for trial in trials if trial.state.is_finished() and ASKED in trial.user_attrs]
