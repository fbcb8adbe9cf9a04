"""The reranking results of one system, found at the path that a user names."""

from __future__ import annotations

from pathlib import Path

from unimoe.core.errors import UsageError
from unimoe.results import SIDECARS, read_result

# Result files below the folder of a seed, of an arm, and of an experiment.
_BELOW = ("results/*/*.json", "seed_*/results/*/*.json", "*/seed_*/results/*/*.json")


def result_paths(path: Path) -> dict[str, Path]:
    """Return the reranking results at a path by ``task/dataset``: a file, or the folder of a seed, arm or system.

    A folder of several arms has the first stage's results beside one system's; nothing is found in other folders.

    Raises:
        UsageError: the folder holds several systems.
        DataError: a result is damaged.
    """
    if path.is_file() and path.suffix == ".json":
        return {read_result(path).key: path}
    found: dict[Path, dict[str, Path]] = {}
    for file in next(filter(None, (sorted(path.glob(pattern)) for pattern in _BELOW)), ()):
        if not file.name.endswith(SIDECARS):
            result = read_result(file)
            if result.task == "reranking" and result.identity.base_model is not None:
                found.setdefault(file.parents[2], {})[result.key] = file
    if len(found) > 1:
        systems = ", ".join(sorted(map(str, found)))
        raise UsageError(f"{path}: holds results of {len(found)} systems; name one of {systems}")
    return next(iter(found.values()), {})
