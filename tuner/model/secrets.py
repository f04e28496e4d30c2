"""What must not be shown: one place that knows a secret when it sees one.

Used wherever a command line, an environment or foreign text goes into a report, a tracker, an export or an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = ["MASK", "looks_secret", "mask", "mask_argv", "mask_environment"]

MASK = "***"

_NAME = re.compile(
    r"(?:^|[_\-.])(?:api[_-]?key|key|token|auth|cookie|credentials?)$|secret|passw(?:or)?d|passphrase", re.IGNORECASE
)
# Written out rather than guessed from entropy: a hash of a configuration must stay readable.
_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_\-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w\-]{16,}|\bxox[abprs]-[\w\-]{10,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[\w\-]{10,1024}\.[\w\-]{10,4096}\.[\w\-]{5,1024}"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=\-]{8,}")
_URL = re.compile(r"(?i)([a-z][a-z0-9+.\-]{1,20}://)[^/\s:@'\"]{0,256}:[^/\s@'\"]{1,256}@")
_URL_USER = re.compile(r"(?i)([a-z][a-z0-9+.\-]{1,20}://)[^/\s:@'\"]{16,256}@")
_QUERY = re.compile(r"(?i)([?&](?:[\w\-]*(?:token|key|secret|password|signature|sig))=)[^&\s'\"]+")
# No pattern starts with an unbounded repeat, and none repeats without bound before something that may be missing:
# masking must stay linear in foreign text (64 KiB of "a-a-a-…" took three minutes otherwise).
_ASSIGNED = re.compile(
    r"(?i)((?:api[_-]?key|_key|_token|secret[a-z_]{0,32}|passw(?:or)?d|passphrase))"
    r"(['\"]?\s{0,8}[=:]\s{0,8}['\"]?)([^\s'\",;&}\]]+)"
)
_OPTION = re.compile(
    r"(?i)(?<![a-z0-9_\-.])(--?[a-z0-9_\-.]{0,64}?(?:api[_-]?key|[_\-]token|hf[_-]token|secret|passw(?:or)?d))"
    r"(\s{1,8}|=)(['\"]?)([^\s'\"]+)"
)


def looks_secret(name: str) -> bool:
    """Whether a variable, flag or key of this name holds a secret (``HF_TOKEN``, ``--api-key``, ``DB_PASSWORD``)."""
    return _NAME.search(name.lstrip("-")) is not None


def mask(text: str) -> str:
    """The text with every secret replaced that can be told by its shape or by the name before it."""
    text = _URL.sub(rf"\1{MASK}@", text)
    text = _URL_USER.sub(rf"\1{MASK}@", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _BEARER.sub(rf"\1\2{MASK}", text)
    text = _OPTION.sub(rf"\1\2\3{MASK}", text)
    text = _ASSIGNED.sub(lambda found: found[1] + found[2] + _assigned(found[3]), text)
    return _VALUE.sub(MASK, text)


def _assigned(value: str) -> str:
    # "api_key: None" in vLLM's own dump of its arguments says that there is no key.
    return value if value in ("None", "null", "True", "False", "[]", "{}") else MASK


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line fit to be shown: values of secret options and secrets inside words are masked."""
    shown: list[str] = []
    hide = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("--"):
            shown.append(MASK)
            continue
        hide = False
        if word.startswith("-") and looks_secret(name):
            shown.append(f"{name}={MASK}" if equals else word)
            hide = not equals
        else:
            shown.append(mask(word))
    return tuple(shown)


def mask_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables fit to be shown."""
    return {name: MASK if looks_secret(name) else mask(value) for name, value in environment.items()}
