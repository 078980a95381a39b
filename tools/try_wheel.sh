#!/usr/bin/env bash
# Builds the wheel, installs it into a virtual environment of its own and uses it outside the tree.
#     tools/try_wheel.sh PYTHON
set -euo pipefail
python=$1
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$python" -m venv "$place/venv"
# From a copy: a build folder that is left in the tree would end up in the wheel.
mkdir "$place/source"
git -C "$tree" ls-files -z --cached --others --exclude-standard |
  (cd "$tree" && xargs -0 tar -cf -) | tar -xf - -C "$place/source"
# As `make setup` installs: wheels with known hashes only, and this project without its dependencies.
"$place/venv/bin/python" "$tree/tools/requirements.py" pip uv >"$place/pip.txt"
"$place/venv/bin/python" -m pip install --quiet --require-hashes --only-binary=:all: \
  -r "$place/pip.txt"
"$place/venv/bin/python" "$tree/tools/install.py" examples
"$place/venv/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation \
  --wheel-dir "$place" "$place/source"
"$place/venv/bin/python" -m pip install --quiet --no-deps --no-index "$(echo "$place"/*.whl)"
"$place/venv/bin/python" -m pip check

cp "$tree/examples/logreg.py" "$place/"
cd "$place"
unset PYTHONPATH
run() { venv/bin/python "$@"; }
run -c '
import importlib.resources, importlib.util
import emulator, pef_schema, samba, sambaflow
for package in (emulator, pef_schema, samba, sambaflow):
    assert "site-packages" in package.__file__, package.__file__
    assert importlib.resources.files(package).joinpath("py.typed").is_file(), package
assert importlib.util.find_spec("bench") is None, "the bench was installed"
'
if [ "$(uname -sm)" = "Linux x86_64" ]; then
  run -c 'from emulator.native.library import native_library; print(native_library().version)'
fi
run logreg.py compile --pef-name=logreg --output-folder=out
run logreg.py run --pef=out/logreg/logreg.pef
run -m emulator verify out/logreg/logreg.pef
run -m samba --help >/dev/null
echo "The wheel works outside the tree: $(basename "$place"/*.whl)"
