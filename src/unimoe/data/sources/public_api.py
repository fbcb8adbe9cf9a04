"""The public API of NumPy, SciPy and pandas, walked for its docstrings."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from unimoe.data.sources.docstrings import Docstring, parse

MODULES = {
    "numpy": (
        "char ctypeslib exceptions fft lib lib.array_utils lib.format lib.introspect lib.mixins lib.npyio "
        "lib.scimath lib.stride_tricks linalg ma ma.mrecords polynomial polynomial.chebyshev "
        "polynomial.hermite polynomial.hermite_e polynomial.laguerre polynomial.legendre polynomial.polynomial "
        "polynomial.polyutils random rec strings testing"
    ),
    "scipy": (
        "cluster.hierarchy cluster.vq constants datasets differentiate fft fftpack integrate interpolate io io.arff "
        "io.matlab io.wavfile linalg linalg.interpolative ndimage odr optimize optimize.elementwise signal "
        "signal.windows sparse sparse.csgraph sparse.linalg spatial spatial.distance spatial.transform special stats "
        "stats.contingency stats.mstats stats.qmc stats.sampling"
    ),
    "pandas": (
        "api.extensions api.indexers api.interchange api.types api.typing arrays errors plotting testing "
        "tseries.frequencies tseries.offsets"
    ),
}
"""The modules of each package's API reference besides the package itself."""

_PLATFORM_TYPES = (np.signedinteger, np.unsignedinteger, np.longdouble, np.clongdouble)
"""Which of these a name such as ``int64`` stands for depends on the platform."""


class PublicName(NamedTuple):
    """One public path of an object. The least of several is the one to call it by: its own class's, then the shortest.

    Attributes:
        inherited: whether the path leads through a class that only inherits the object.
        dots: dots in the path.
        length: characters of the path.
        path: for example ``numpy.linalg.norm``.
    """

    inherited: bool
    dots: int
    length: int
    path: str


def documented() -> dict[Docstring, set[PublicName]]:
    """Every distinct docstring of the public API, and the public names it is found under."""
    found: dict[Docstring, set[PublicName]] = defaultdict(set)
    noise = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        warnings.simplefilter("ignore")
        for package, modules in MODULES.items():
            for module_name in (package, *(f"{package}.{name}" for name in modules.split())):
                for name, value in _public_objects(module_name, package):
                    docstring = parse(value.__doc__) if isinstance(value.__doc__, str) else None
                    if docstring is not None:
                        found[docstring].add(name)
    return found


def _public_objects(module_name: str, package: str) -> Iterator[tuple[PublicName, Any]]:
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    for name in getattr(module, "__all__", dir(module)):
        value = getattr(module, name, None)
        if name.startswith("_") or value is None or isinstance(value, ModuleType) or not _is_of(value, package):
            continue
        path = f"{module_name}.{name}"
        yield _public_name(path), value
        if isinstance(value, type):
            yield from _public_members(path, value, package)


def _public_members(path: str, cls: type, package: str) -> Iterator[tuple[PublicName, Any]]:
    """Members that the package itself defines: what comes from Python changes with its version."""
    own = {name for base in cls.__mro__ if _root(base.__module__) == package for name in vars(base)}
    for name in sorted(own):
        value = getattr(cls, name, None)
        if name.startswith("_") or value is None:
            continue
        yield _public_name(f"{path}.{name}", inherited=name not in vars(cls)), value
        if isinstance(value, type) and _root(value.__module__) == package and path.count(".") == 1:
            yield from _public_members(f"{path}.{name}", value, package)  # accessors such as pandas.Series.str


def _public_name(path: str, *, inherited: bool = False) -> PublicName:
    return PublicName(inherited, path.count("."), len(path), path)


def _is_of(value: Any, package: str) -> bool:
    """Whether an object found in a module of ``package`` belongs there and is the same on every platform."""
    if isinstance(value, np.ufunc):  # knows no module; numpy.ufunc's would hide those of scipy.special
        return True
    if type(value).__name__ == "fortran":  # thousands of BLAS and LAPACK wrappers that differ in one letter
        return False
    if isinstance(value, type) and issubclass(value, _PLATFORM_TYPES):
        return False
    return _root(getattr(value, "__module__", None) or package) == package


def _root(module_name: str) -> str:
    return module_name.partition(".")[0]
