"""Runs the probe in the Python that serves, and keeps what it said: the imports alone cost about 10 s."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from tuner.errors import InputError, RunError
from tuner.model.json import Json
from tuner.spaces import probe

__all__ = ["describe", "read_back", "read_back_many"]

_ANSWER_LIMIT = 32 * 1024 * 1024
_TIMEOUT_S = 180.0
# Finds vLLM without importing it: where it lies, its version file, and when that was written.
_LOCATE = """
import importlib.util, json, os
spec = importlib.util.find_spec("vllm")
origin = spec.origin if spec and spec.origin else ""
path = os.path.join(os.path.dirname(origin), "_version.py") if origin else ""
stat = os.stat(path) if path and os.path.exists(path) else None
text = open(path, encoding="utf-8").read()[-400:] if stat else ""
print(json.dumps({"origin": origin, "mtime": stat.st_mtime_ns if stat else 0, "text": text}))
"""


def describe(python: Sequence[str], *, timeout_s: float = _TIMEOUT_S, cache: Path | None = None) -> dict[str, Json]:
    """What the installed vLLM accepts: ``version``, ``flags``, ``fields``, ``env``.

    Args:
        python: command of the Python that serves.
        cache: folder for answers, by default under the user's cache folder.

    Raises:
        InputError: that Python has no vLLM, or cannot be run at all.
        RunError: vLLM is there but its parser could not be asked.
    """
    place = _locate(python)
    digest = hashlib.sha256(f"{list(python)}|{place}|{_source()}".encode()).hexdigest()[:20]
    path = (cache or _cache_folder()) / f"flags-{digest}.json"
    known = _read_cache(path)
    if known is not None:
        return known
    answer = _run(python, {}, timeout_s)
    if not isinstance(answer, dict) or not isinstance(answer.get("flags"), dict):
        raise RunError(f"{_name(python)}: vLLM's parser gave no flags; see whether vLLM imports in that environment")
    _write_cache(path, answer)
    return answer


def read_back(python: Sequence[str], argv: Sequence[str], *, timeout_s: float = _TIMEOUT_S) -> dict[str, Json]:
    """What ``vllm serve ARGV`` would run with, by the name of each setting (``max_num_seqs``).

    ``["--config", "winner.yaml"]`` reads a file the way vLLM does.

    Raises:
        InputError: vLLM's parser refuses the arguments; its words are in the message.
        RunError: the parser could not be asked.
    """
    answer = read_back_many(python, [argv], timeout_s=timeout_s)[0]
    if isinstance(answer, str):
        raise InputError(
            f"vLLM's parser refuses the arguments: {answer}; run `vllm serve --help=all` for what it takes"
        )
    return answer


def read_back_many(
    python: Sequence[str], argvs: Sequence[Sequence[str]], *, timeout_s: float = _TIMEOUT_S
) -> list[dict[str, Json] | str]:
    """:func:`read_back` for many command lines at the price of one: settings, or the parser's refusal as text.

    Raises:
        RunError: the parser could not be asked.
    """
    answer = _run(python, {"read": [list(argv) for argv in argvs]}, timeout_s)
    if not isinstance(answer, list) or len(answer) != len(argvs):
        raise RunError(f"{_name(python)}: vLLM's parser gave no answer; see whether vLLM imports in that environment")
    out: list[dict[str, Json] | str] = []
    for item in answer:
        values = item.get("values") if isinstance(item, dict) else None
        out.append(values if isinstance(values, dict) else str(item.get("error") if isinstance(item, dict) else item))
    return out


def _locate(python: Sequence[str]) -> str:
    try:
        found = subprocess.run(
            [*python, "-c", _LOCATE], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{_name(python)}: cannot be run ({error}); give the Python that has vLLM") from None
    if found.returncode != 0:
        last = (found.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"{_name(python)}: is no working Python ({last[:200]}); give the Python that has vLLM")
    try:
        origin = json.loads(found.stdout.strip().splitlines()[-1])["origin"]
    except (ValueError, LookupError, TypeError):
        origin = ""
    if not origin:
        raise InputError(f"{_name(python)}: has no vLLM; install it there (pip install vllm) or name another Python")
    return found.stdout


def _run(python: Sequence[str], request: dict[str, Json], timeout_s: float) -> Json:
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    with tempfile.TemporaryDirectory(prefix="tune-probe-") as scratch:
        script = Path(scratch) / "probe.py"
        script.write_text(_source(), encoding="utf-8")
        try:
            ended = subprocess.run(
                [*python, str(script)],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"{_name(python)}: vLLM's parser took over {timeout_s:.0f} s; is the disk slow?") from None
        except OSError as error:
            raise InputError(f"{_name(python)}: cannot be run ({error}); give the Python that has vLLM") from None
    text = ended.stdout[-_ANSWER_LIMIT:]
    _, marker, answer = text.rpartition(probe.MARKER)
    if not marker:
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        raise RunError(f"{_name(python)}: vLLM cannot be imported there ({last[:300]}); repair that environment")
    try:
        value: Json = json.loads(answer)
    except ValueError:
        raise RunError(
            f"{_name(python)}: vLLM's parser gave no JSON; see whether vLLM imports in that environment"
        ) from None
    return value


def _source() -> str:
    return resources.files("tuner.spaces").joinpath("probe.py").read_text(encoding="utf-8")


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "vllm-tune" / "flags"


def _read_cache(path: Path) -> dict[str, Json] | None:
    try:
        if path.stat().st_size > _ANSWER_LIMIT:
            return None
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("flags"), dict) else None


def _write_cache(path: Path, value: Json) -> None:
    """A cache that cannot be written costs time, nothing else."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            json.dump(value, file)
        Path(file.name).replace(path)


def _name(python: Sequence[str]) -> str:
    return " ".join(python)
