"""Starts vLLM servers on this machine, one at a time, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from tuner.errors import InputError, StudyStopped
from tuner.model.candidate import Candidate
from tuner.model.measurement import ServerReport
from tuner.model.outcome import Blame, Failure
from tuner.ports import LaunchFailed, Progress
from tuner.serving import gpu
from tuner.serving.command import Command, Settings, build, default_base, environment
from tuner.serving.effective import differences, effective, fetch_labels, fetch_server_info
from tuner.serving.failures import excerpt
from tuner.serving.ledger import Ledger, sweep
from tuner.serving.locks import cache_root, claim_cache
from tuner.serving.logs import LogReader, tail
from tuner.serving.ports import Reservation, is_free, listens
from tuner.serving.processes import Tree, become_subreaper, end_tree, marked
from tuner.serving.server import LocalServer
from tuner.serving.starting import ZYGOTE, Handle, WarmParent, WarmParentLost, start_cold
from tuner.serving.warm import WarmParents
from tuner.serving.watch import Patience, stack_dump, wait_ready

__all__ = ["VllmLauncher"]

_RETURN_S = 60.0
_TAKEN_S = 2.0
# A server that was ready gets time to end its workers; one that was not has nothing worth waiting for.
_GRACE_S = (15.0, 5.0)
_COLD = "started cold, which takes longer: {}"


@dataclass
class _Launch:
    """One start in progress."""

    command: Command
    port: int
    marker: str
    handle: Handle
    tree: Tree
    mode: str
    log: Path
    begun: float
    begun_wall: float
    record: Path


class VllmLauncher:
    """Implements :class:`tuner.ports.Launcher` with real vLLM processes.

    Args:
        model: what goes to vLLM as ``--model``.
        study_dir: the ledger and the warm parents' log lie here.
        python: words of the Python that serves; default the one that runs now.
        vllm_command: the user's own command instead (container, wrapper, other environment); always started cold.
        warm: fork servers from a parent that has imported vLLM.
        environment: the study's variables.
        weight_bytes: size of the checkpoint, for how long a start may take.
        platform: ``cpu``, ``cuda`` or ``rocm``.
        gpus: indices of the devices that servers may use.
        patience: factor on every time limit.
        observe: flags that make the server tell more, see :class:`~tuner.serving.command.Settings`.

    Raises:
        InputError: the command is empty, or the study folder cannot be written.
    """

    def __init__(
        self,
        model: str,
        *,
        study_dir: Path,
        python: Sequence[str] | None = None,
        vllm_command: Sequence[str] | None = None,
        warm: bool = True,
        environment: Mapping[str, str] | None = None,
        weight_bytes: float = 0.0,
        platform: str = "cpu",
        gpus: Sequence[int] = (),
        trust_remote_code: bool = False,
        tokenizer: str = "",
        host: str = "127.0.0.1",
        patience: float = 1.0,
        observe: Sequence[str] = (),
    ) -> None:
        if vllm_command is not None and not vllm_command:
            raise InputError("--vllm-command is empty: give the words that start vLLM, such as 'vllm serve'")
        self._python = tuple(python or (sys.executable,))
        self._own_command = vllm_command is not None
        self._study_dir = study_dir
        try:
            study_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{study_dir} cannot be made ({error.strerror}): give another --directory") from error
        self._cache, self._cache_lock = claim_cache()
        self._settings = Settings(
            model=model,
            base=tuple(vllm_command) if vllm_command is not None else default_base(self._python),
            environment=dict(environment or {}),
            devices=tuple(gpus),
            host=host,
            tokenizer=tokenizer,
            trust_remote_code=trust_remote_code,
            observe=tuple(observe),
            cache=self._cache,
        )
        self._key = secrets.token_urlsafe(24)
        self._id = uuid.uuid4().hex
        self._count = 0
        self._patience = Patience(weight_bytes=weight_bytes, scale=patience)
        self._platform = platform
        self._ledger = Ledger(study_dir / "processes.jsonl")
        become_subreaper()
        self.swept: tuple[str, ...] = sweep(self._ledger.path)
        """What an earlier, killed run of this study had left and is now ended: sentences for the user."""
        self._warm: WarmParents | None = None
        if warm and not self._own_command:
            self._warm = WarmParents(
                self._python,
                platform=platform,
                folder=study_dir,
                wants=cache_root() / "worker-environment.json",
                ledger=self._ledger,
                marker=self._id,
            )
        self._closed = False

    def _marker(self, what: str | int) -> str:
        return f"{self._id}-{what}"

    @contextlib.contextmanager
    def launch(self, candidate: Candidate, *, directory: Path, progress: Progress) -> Iterator[LocalServer]:
        """See :meth:`tuner.ports.Launcher.launch`."""
        directory.mkdir(parents=True, exist_ok=True)
        memory = gpu.used_bytes(self._settings.devices) if self._platform == "cuda" else {}
        warnings: list[str] = []
        launch = self._start(candidate, directory, warnings, progress)
        server: LocalServer | None = None
        ready = False
        try:
            server = self._await(launch, candidate, directory, warnings, progress)
            ready = True
            yield server
        finally:
            progress("teardown", "")
            if server is not None:
                server.close()
            self._end(launch, memory, ready=ready)

    def _start(self, candidate: Candidate, directory: Path, warnings: list[str], progress: Progress) -> _Launch:
        self._count += 1
        marker = self._marker(self._count)
        name = f"tune-{secrets.token_hex(6)}"
        reservation = Reservation(self._settings.host)
        command = build(
            candidate, self._settings, port=reservation.port, served_name=name, key=self._key, marker=marker
        )
        log = directory / "server.log"
        record = directory / "worker-environment.json"
        for stale in (log, record):
            stale.unlink(missing_ok=True)
        parent = self._warm_parent(command, candidate, warnings, progress)
        self._ledger.will_start(marker, "server")
        reservation.release()
        mode, handle, begun, begun_wall = "warm", None, time.monotonic(), time.time()
        if parent is not None:
            try:
                handle = parent.start("server", command.flags, environment=command.environment, log=log, record=record)
            except WarmParentLost as error:
                warnings.append(_COLD.format(error))
        if handle is None:
            mode, begun, begun_wall = "cold", time.monotonic(), time.time()
            try:
                handle = start_cold(command.argv, environment=command.environment, log=log)
            except OSError as error:
                self._ledger.ended(marker, "server")
                raise LaunchFailed(_cannot_start(command, error)) from error
        progress("start", mode)
        self._ledger.started(marker, handle.identity, "server")
        # A forked server shows its parent's environment to /proc, so the launcher's own identifier is what all share.
        spare = self._warm.identities if self._warm is not None else set()
        tree = Tree(handle.identity, self._id, spare=spare)
        return _Launch(command, reservation.port, marker, handle, tree, mode, log, begun, begun_wall, record)

    def _warm_parent(
        self, command: Command, candidate: Candidate, warnings: list[str], progress: Progress
    ) -> WarmParent | None:
        if self._warm is None:
            return None
        try:
            return self._warm.get(command.environment, _layout(candidate), progress)
        except WarmParentLost as error:
            warnings.append(_COLD.format(error))
            return None

    def _await(
        self, launch: _Launch, candidate: Candidate, directory: Path, warnings: list[str], progress: Progress
    ) -> LocalServer:
        reader = LogReader(launch.log, started=launch.begun_wall)
        url = f"http://{self._settings.host}:{launch.port}"
        headers = {"Authorization": f"Bearer {self._key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=10.0, trust_env=False) as client:
            failure = wait_ready(
                launch.handle,
                launch.tree,
                client,
                reader,
                self._patience,
                progress=progress,
                on_hang=lambda: stack_dump(launch.tree, directory / "stack.txt"),
            )
            total = time.monotonic() - launch.begun
            if failure is None:
                failure = self._prove(client, launch)
            report = self._report(launch, candidate, reader, warnings, total)
            if failure is not None:
                raise LaunchFailed(failure, report)
            settings = effective(fetch_server_info(client), fetch_labels(client), reader.facts)
        report = replace(
            report, effective=settings, differences=differences(candidate, settings, reader.facts.warnings)
        )
        self._patience.learn(dict(report.phases))
        if self._warm is not None:
            self._warm.learn(launch.command.environment, _layout(candidate), launch.record)
        return LocalServer(
            base_url=url,
            api_key=self._key,
            model_name=_served_name(launch.command),
            handle=launch.handle,
            tree=launch.tree,
            reader=reader,
            first_report=report,
            start_client=self._start_client,
            directory=directory,
        )

    def _report(
        self, launch: _Launch, candidate: Candidate, reader: LogReader, warnings: Sequence[str], total: float
    ) -> ServerReport:
        reader.poll()
        return ServerReport(
            effective=dict(reader.facts.settings),
            phases=reader.facts.phases(total),
            mode=launch.mode,
            warnings=(*warnings, *reader.facts.warnings),
            version=reader.facts.version,
            command=launch.command.printable(candidate, self._settings.environment),
            log_path=str(launch.log),
        )

    def _prove(self, client: httpx.Client, launch: _Launch) -> Failure | None:
        """That it is this launch's server which answers: its random name, and a listening socket of ours."""
        wanted = _served_name(launch.command)
        try:
            body = client.get("/v1/models")
            names = (
                [str(item.get("id")) for item in body.json()["data"]][:20] if body.status_code == httpx.codes.OK else []
            )
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            names = []
        # A container's processes are not our descendants; there the name alone has to do.
        if wanted in names and (self._own_command or listens(launch.tree.refresh(), launch.port)):
            return None
        said = ", ".join(names) or "no model of ours"
        return Failure(
            kind="port",
            cause=f"another server answers on port {launch.port} ({said[:200]}), not the one that was started",
            blame=Blame.MACHINE,
            retry=True,
            advice="end the other server",
            excerpt=excerpt(tail(launch.log), ""),
        )

    def _end(self, launch: _Launch, memory: dict[int, int], *, ready: bool) -> None:
        left = end_tree(launch.tree, grace_s=_GRACE_S[0] if ready else _GRACE_S[1])
        launch.handle.poll()
        if left:
            pids = ", ".join(str(item.pid) for item in left)
            raise StudyStopped(f"processes {pids} of a server cannot be killed: restart the machine, then run again")
        self._ledger.ended(launch.marker, "server")
        # A server that never was ready may have found the port taken; whoever has it then is not ours to wait for.
        deadline = time.monotonic() + (_RETURN_S if ready else _TAKEN_S)
        while not is_free(launch.port, self._settings.host):
            if time.monotonic() > deadline:
                # The next server takes another port; only our own sockets would be a reason to worry.
                break
            time.sleep(0.1)
        if held := gpu.returned(memory, seconds=_RETURN_S):
            amount = ", ".join(f"GPU {index}: {size / (1 << 30):.1f} GiB" for index, size in sorted(held.items()))
            raise StudyStopped(
                f"{_RETURN_S:.0f} s after the server ended its GPU memory is still in use ({amount}): "
                "something else uses the GPU, or the driver needs a reset; free it and run the same command again"
            )

    def _start_client(self, argv: Sequence[str], extra: Mapping[str, str], log: Path) -> tuple[Handle, Tree]:
        marker = self._marker(f"client-{secrets.token_hex(4)}")
        variables = {**environment(self._settings, None, key="", marker=marker), **extra}
        self._ledger.will_start(marker, "client")
        handle: Handle | None = None
        if self._warm is not None and (parent := self._warm.any()) is not None:
            with contextlib.suppress(WarmParentLost):
                handle = parent.start("cli", argv, environment=variables, log=log)
        if handle is None:
            handle = start_cold([*self._python, str(ZYGOTE), "cli", *argv], environment=variables, log=log)
        self._ledger.started(marker, handle.identity, "client")
        return handle, Tree(handle.identity, marker)

    def close(self) -> None:
        """See :meth:`tuner.ports.Launcher.close`."""
        if self._closed:
            return
        self._closed = True
        if self._warm is not None:
            self._warm.close()
        # What an interrupt between a start and its note has left.
        for stray in marked(self._id):
            end_tree(Tree(stray, self._id), grace_s=1.0)
        os.close(self._cache_lock)


def _served_name(command: Command) -> str:
    return command.flags[command.flags.index("--served-model-name") + 1]


def _layout(candidate: Candidate) -> str:
    names = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    return ",".join(str(candidate.arguments.get(name, 1)) for name in names)


def _cannot_start(command: Command, error: OSError) -> Failure:
    return Failure(
        kind="command",
        cause=f"{command.argv[0]} cannot be started: {error.strerror}",
        blame=Blame.USER,
        advice="check --vllm-command, or the Python that serves",
    )
