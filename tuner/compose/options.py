"""What the user asked for, validated before anything is written or started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tuner.errors import InputError
from tuner.model.json import Json
from tuner.model.secrets import looks_secret, mask
from tuner.model.targets import parse_duration, parse_limit, parse_objective, short_name
from tuner.model.workload import Limit, Objective

__all__ = ["Options", "Places", "check_file_exists", "check_writable", "split_command"]

_STUDY_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_FLAG_NAME = re.compile(r"^[a-z][a-z0-9]*(-[a-z0-9]+)*(\.[A-Za-z0-9_]+)*$")
_SAMPLERS = ("tune", "tpe", "gp", "random", "qmc", "nsga2")
_DEFAULT_BUDGET_S = 2 * 3600.0
# A front in more dimensions is most of what was measured: nothing beats anything in all of them.
_MOST_OBJECTIVES = 3
_DEFAULT_TRIAL_S = 3600.0
# The launcher's own: a study that set them could measure another server than the one it started.
_RESERVED_FLAGS = frozenset({"host", "port", "api-key", "model", "served-model-name", "config", "uds", "root-path"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a study keeps things.

    Attributes:
        root: the folder of all studies.
        storage: Optuna storage URL.
        tracking_uri: MLflow tracking URI, absolute.
    """

    root: Path
    storage: str
    tracking_uri: str

    @classmethod
    def of(cls, directory: Path, storage: str | None, tracking_uri: str | None) -> Places:
        """Defaults below the directory; relative SQLite paths made absolute, so that every reader finds the same file.

        Raises:
            InputError: a URL with a scheme that the storage or MLflow does not have.
        """
        root = directory.expanduser().absolute()
        tracking = tracking_uri or f"sqlite:///{root / 'mlflow.db'}"
        if urlsplit(tracking).scheme not in ("sqlite", "http", "https", "postgresql", "mysql", "databricks"):
            raise InputError(f"--tracking-uri {tracking!r}: write sqlite:////ABSOLUTE/FILE or http://HOST:PORT")
        return cls(
            root=root,
            storage=_absolute_sqlite(storage or f"sqlite:///{root / 'optuna.db'}"),
            tracking_uri=_absolute_sqlite(tracking),
        )

    def study(self, name: str) -> Path:
        """The folder of one study."""
        return self.root / name


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of ``tune --hardware NAME``, as typed. The properties validate.

    Every property raises :class:`~tuner.errors.InputError` with one line for what is wrong.
    """

    hardware: str
    model: str | None = None
    workload: str | None = None
    spaces: tuple[Path, ...] = ()
    trials: int | None = None
    budget: str | None = None
    objective: str = "throughput"
    further: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    max_drop: float = 0.01
    lm_eval: tuple[str, ...] = ()
    questions: tuple[Path, ...] = ()
    check_quality: bool = True
    storage: str | None = None
    tracking_uri: str | None = None
    study: str | None = None
    directory: Path = field(default_factory=lambda: Path("tune-studies"))
    seed: int = 0
    sampler: str = "tune"
    warm_start: str = "auto"
    vllm_command: str | None = None
    trial_command: str | None = None
    trial_timeout: str | None = None
    replay: Path | None = None
    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    warm: bool = True
    early_stop: bool = True
    trust_remote_code: bool = False
    price: float | None = None
    as_json: bool = False

    def validate(self) -> None:
        """Look at every option once, so that nothing is found wrong after something was started."""
        _ = (self.budget_seconds, self.trial_timeout_s, self.parsed_objective, self.parsed_limits, self.extra_arguments)
        _ = (self.extra_environment, self.places, self.further_objectives)
        if self.trials is not None and self.trials < 1:
            raise InputError(f"--trials {self.trials}: must be at least 1 (the baseline)")
        if not 0 <= self.max_drop < 1:
            raise InputError(f"--max-accuracy-drop {self.max_drop}: a share from 0 to below 1, such as 0.01")
        if self.sampler not in _SAMPLERS:
            raise InputError(f"--sampler {self.sampler!r} is unknown; one of {', '.join(_SAMPLERS)}")
        self._validate_warm_start()
        if "cost" in (self.objective, *self.further) and self.price is None:
            raise InputError("--objective cost: needs --price, the price of the machine per hour")
        if self.price is not None and not 0 < self.price < 1e9:
            raise InputError(f"--price {self.price}: must be a positive number per hour")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"--seed {self.seed}: from 0 to {2**31 - 1}")
        if self.study is not None and not _STUDY_NAME.match(self.study):
            raise InputError(f"--study {self.study!r}: letters, digits and . _ @ + - only, at most 128")
        if sum(x is not None for x in (self.vllm_command, self.trial_command, self.replay)) > 1:
            raise InputError("--vllm-command, --trial-command and --replay exclude one another")
        for name, text in (("--vllm-command", self.vllm_command), ("--trial-command", self.trial_command)):
            if text is not None:
                split_command(name, text)
        self._validate_accuracy()
        for path in (*self.spaces, *((self.replay,) if self.replay else ())):
            check_file_exists(path)

    def _validate_accuracy(self) -> None:
        for path in self.questions:
            check_file_exists(path)
        for limit in self.parsed_limits:
            if limit.metric.startswith("accuracy/") and not self.check_quality:
                raise InputError("--limit accuracy: nothing reports it, as --no-accuracy switches the check off")

    def _validate_warm_start(self) -> None:
        if self.warm_start in ("auto", "none"):
            return
        name = self.warm_start.removeprefix("mlflow:")
        if not name or (name == self.warm_start and not _STUDY_NAME.match(name)):
            raise InputError(f"--warm-start {self.warm_start!r}: auto, none, a study, or mlflow:EXPERIMENT")
        if self.sampler != "tune" or self.further:
            reason = f"--sampler {self.sampler} does not" if self.sampler != "tune" else "several objectives do not"
            raise InputError(f"--warm-start {self.warm_start}: {reason} learn from earlier trials; leave it away")

    @property
    def budget_seconds(self) -> float | None:
        """Wall time (s); two hours where neither a time nor a number of trials was given."""
        if self.budget is None:
            return None if self.trials is not None else _DEFAULT_BUDGET_S
        try:
            return parse_duration(self.budget)
        except ValueError as error:
            raise InputError(f"--budget: {error}") from None

    @property
    def trial_timeout_s(self) -> float:
        """Longest time (s) that one run of the trial command may take."""
        if self.trial_timeout is None:
            return _DEFAULT_TRIAL_S
        if self.trial_command is None:
            raise InputError("--trial-timeout: bounds what --trial-command may take, and there is none")
        try:
            return parse_duration(self.trial_timeout)
        except ValueError as error:
            raise InputError(f"--trial-timeout: {error}") from None

    @property
    def parsed_objective(self) -> Objective:
        try:
            return parse_objective(self.objective)
        except ValueError as error:
            raise InputError(f"--objective: {error}") from None

    @property
    def further_objectives(self) -> tuple[Objective, ...]:
        """What is traded against the objective: with any, the study has a Pareto front."""
        try:
            found = tuple(parse_objective(text) for text in self.further)
        except ValueError as error:
            raise InputError(f"--objective: {error}") from None
        names = [self.parsed_objective.metric, *(objective.metric for objective in found)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"--objective {short_name(twice)}: is given twice; several objectives must differ")
        if not self.check_quality and any(name.startswith("accuracy/") for name in names):
            raise InputError("--objective accuracy: nothing reports it, as --no-accuracy switches the check off")
        if len(names) > _MOST_OBJECTIVES:
            raise InputError(f"--objective: at most {_MOST_OBJECTIVES}; make limits of the others (--limit)")
        return found

    @property
    def parsed_limits(self) -> tuple[Limit, ...]:
        try:
            return tuple(parse_limit(text) for text in self.limits)
        except ValueError as error:
            raise InputError(f"--limit: {error}") from None

    @property
    def extra_arguments(self) -> dict[str, Json]:
        """``--arg name=value``, values read as YAML scalars or flow collections."""
        out: dict[str, Json] = {}
        for text in self.arguments:
            name, equals, value = text.partition("=")
            name = name.strip().lstrip("-").strip()
            if not _FLAG_NAME.match(name):
                raise InputError(f"--arg {text!r}: write NAME=VALUE with a vLLM flag, such as load-format=dummy")
            if name in _RESERVED_FLAGS:
                raise InputError(f"--arg {name}: is set by tune itself" + ("; use --model" if name == "model" else ""))
            if looks_secret(name):
                raise InputError(f"--arg {name}: would stand in process lists; set it as a variable, such as HF_TOKEN")
            out[name] = _argument_value(name, value) if equals else True
        return out

    @property
    def extra_environment(self) -> dict[str, str]:
        """``--env`` values that may be shown and kept: they belong to every candidate."""
        return {name: value for name, value in self._environment.items() if not _is_secret(name, value)}

    @property
    def secret_environment(self) -> dict[str, str]:
        """``--env`` values that look like a secret: the servers get them, nothing else does."""
        return {name: value for name, value in self._environment.items() if _is_secret(name, value)}

    @property
    def _environment(self) -> dict[str, str]:
        out: dict[str, str] = {}
        for text in self.environment:
            name, equals, value = text.partition("=")
            if not equals or not _ENV_NAME.match(name):
                raise InputError(f"--env {name!r}: write NAME=VALUE")
            out[name] = value
        return out

    @property
    def places(self) -> Places:
        return Places.of(self.directory, self.storage, self.tracking_uri)

    def study_name(self, model: str, workload: str, profile: str = "") -> str:
        """The study's name: as given, or made of what it tunes.

        Args:
            profile: the hardware profile's own name, which stands for ``auto`` and for the path of a profile file.
        """
        if self.study is not None:
            return self.study
        hardware = self.hardware
        if hardware == "auto" or hardware.endswith((".yaml", ".yml")):
            hardware = profile or Path(hardware).stem
        parts = [hardware, Path(model).name, workload]
        if self.objective != "throughput" or self.further:
            parts.append("-".join((self.objective, *self.further)).replace("/", "-"))
        if self.replay is not None or self.trial_command is not None:
            parts.append("replay" if self.replay is not None else "external")
        # As --study demands, a name begins with a letter or digit: one with a dot would be a hidden folder.
        return re.sub(r"[^A-Za-z0-9._@+-]+", "-", "_".join(parts)).lstrip("._@+-")[:128]


def _argument_value(name: str, text: str) -> Json:
    """A YAML scalar or flow collection, within the limits that hold for every YAML of the user's: plain JSON only."""
    from tuner.spaces.yamlfile import SpaceError, parse_yaml, plain  # noqa: PLC0415 - the parser is heavy

    try:
        return plain(parse_yaml(f"value: {text}".encode(errors="replace"), f"--arg {name}").get("value"))
    except SpaceError as error:
        raise InputError(f"--arg {name}: the value is no YAML value that vLLM could take ({error})") from None


def _is_secret(name: str, value: str) -> bool:
    return looks_secret(name) or mask(value) != value


def split_command(option: str, text: str) -> list[str]:
    """A command line as argv, split like a shell would, run without one.

    Raises:
        InputError: empty, unbalanced quotes, or a program that does not exist.
    """
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{option} {text!r}: {error}") from None
    if not argv:
        raise InputError(f"{option}: is empty")
    if shutil.which(argv[0]) is None:
        raise InputError(f"{option}: no program {argv[0]!r} on this machine")
    return argv


def check_file_exists(path: Path) -> None:
    """Say in one line that there is no such file, or that it is a folder.

    Raises:
        InputError: it is no file.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it")
    if not path.is_file():
        raise InputError(f"{path}: no such file")


def check_writable(folder: Path) -> None:
    """Make the folder, or say in one line why nothing can be written there.

    Raises:
        InputError: it cannot be made, or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{folder}: cannot be written ({reason}); choose another with --directory") from None


def _absolute_sqlite(url: str) -> str:
    """``sqlite:///relative`` made absolute; other URLs as they are."""
    prefix = "sqlite:///"
    if not url.startswith(prefix) or url == prefix:
        return url
    path, _, query = url[len(prefix) :].partition("?")
    full = Path(path).expanduser().absolute()
    return f"{prefix}{full}" + (f"?{query}" if query else "")
