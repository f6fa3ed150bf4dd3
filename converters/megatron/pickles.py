"""Read pickles without executing them.

A pickle is a program that calls whatever importable name it mentions. Here a name never leads to
the thing it names: it becomes an inert record, a plain container or a dtype, and a name outside the
packages that Megatron writes is refused.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from converters.errors import CheckpointError

# torch name -> NumPy (or ml_dtypes) name.
DTYPES: dict[str, str] = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool",
}
# Packages whose classes Megatron checkpoints mention; their names become records.
INERT_PACKAGES = ("megatron", "torch", "numpy", "emerging_optimizers", "transformer_engine")
# Single names from elsewhere that Megatron writes.
INERT_NAMES = (
    "_codecs.encode",
    "argparse.Namespace",
    "pathlib.Path",
    "pathlib.PosixPath",
    "signal.Signals",
    "types.SimpleNamespace",
)


@dataclass(frozen=True)
class DType:
    """``torch.float32`` and its like, by torch's name without the package."""

    name: str


class Record:
    """What a pickle says about an object of a class that is not loaded.

    Attributes:
      qualified_name: ``module.Class`` or ``module.function``, as written.
      arguments: positional arguments of its construction.
      state: what ``__setstate__`` would have been given, usually a dict of attributes; or None.
      items: what was appended or stored, for subclasses of containers.
    """

    qualified_name = ""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Record:
        record = super().__new__(cls)
        record.arguments = arguments
        record.state = keywords or None
        record.items = []
        return record

    arguments: tuple[Any, ...]
    state: Any
    items: list[Any]

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        """Construction is recorded by ``__new__``, which pickle calls alone."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    @property
    def attributes(self) -> dict[str, Any]:
        """The state where it is a dict of attributes, else empty."""
        return self.state if isinstance(self.state, dict) else {}

    def __repr__(self) -> str:
        return f"<{self.qualified_name} {self.state if self.state is not None else self.arguments}>"


def is_record(value: Any, name: str) -> bool:
    """Whether ``value`` is a record of a class called ``name``, in whatever module."""
    return isinstance(value, Record) and value.qualified_name.rpartition(".")[2] == name


@dataclass(frozen=True)
class Names:
    """What the names in a pickle lead to.

    Attributes:
      source: what messages call the pickle.
      extra: further factories by qualified name (rebuilding of tensors).
      opaque: further qualified names that may become records.
    """

    source: str
    extra: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    opaque: tuple[str, ...] = ()

    def find(self, module: str, name: str) -> Any:
        """A dtype, a harmless factory or a class of records.

        Raises:
          CheckpointError: any other name.
        """
        qualified = f"{module}.{name}"
        if module == "torch" and name in DTYPES:
            return DType(name)
        factory = self.extra.get(qualified) or _FACTORIES.get(qualified)
        if factory is not None:
            # Fresh for each mention, so that a pickle cannot leave marks on it.
            return _fresh(factory)
        if self._is_inert(module, qualified):
            return type(name, (Record,), {"qualified_name": qualified})
        raise CheckpointError(
            f"{self.source}: refused, its pickle mentions {qualified}, which no Megatron "
            "checkpoint needs; nothing was executed. If it names a harmless class of your own "
            f"code, pass --opaque {qualified} to read it as an inert value"
        )

    def _is_inert(self, module: str, qualified: str) -> bool:
        package = module.partition(".")[0]
        return package in INERT_PACKAGES or qualified in (*INERT_NAMES, *self.opaque)


class InertUnpickler(pickle.Unpickler):
    """An unpickler that resolves names through ``Names`` alone."""

    def __init__(self, file: io.BytesIO, names: Names) -> None:
        super().__init__(file)
        self._names = names

    def find_class(self, module: str, name: str, /) -> Any:
        return self._names.find(module, name)


def load(data: bytes, names: Names, persistent_load: Callable[[Any], Any] | None = None) -> Any:
    """The value of a pickle, made of containers, numbers, strings, dtypes and records.

    Raises:
      CheckpointError: a name that is refused, or bytes that are not a whole pickle.
    """
    stream = io.BytesIO(data)
    unpickler = InertUnpickler(stream, names)
    if persistent_load is not None:
        unpickler.persistent_load = persistent_load  # type: ignore[method-assign]
    value = loaded(unpickler.load, names.source)
    if stream.tell() != len(data):
        raise CheckpointError(
            f"{names.source}: {len(data) - stream.tell()} bytes follow its pickle: the file is "
            "damaged, copy it again"
        )
    return value


def loaded(load: Callable[[], Any], source: str) -> Any:
    """What ``load`` returns, with CheckpointError for whatever it raises."""
    try:
        return load()
    except CheckpointError:
        raise
    # A damaged or hostile stream can fail in any way that the opcodes admit.
    except Exception as error:
        raise CheckpointError(
            f"{source}: not a readable pickle ({type(error).__name__}: {error}); the file is "
            "damaged or cut short: copy it again"
        ) from error


def _member(owner: Any, name: Any) -> Any:
    """Python 3.11 writes an enum member as ``getattr(Enum, 'NAME')``."""
    if isinstance(owner, type) and issubclass(owner, Record):
        return owner(name)
    raise pickle.UnpicklingError("getattr of something that is not a recorded class")


def _default_dict(_factory: Any = None, items: Any = ()) -> dict[Any, Any]:
    return dict(items)


def _byte_array(content: Any = b"") -> bytearray:
    # A number would be a size: memory for the asking.
    if not isinstance(content, (bytes, bytearray)):
        raise pickle.UnpicklingError("bytearray of something that is not bytes")
    return bytearray(content)


class _Ordered(dict[Any, Any]):
    """An ordered dictionary. ``state_dict`` hangs attributes on its own; they are not kept."""

    def __setstate__(self, state: Any) -> None:
        """Nothing of it is needed."""


def _ordered(items: Any = ()) -> dict[Any, Any]:
    return _Ordered(items)


_FACTORIES: dict[str, Callable[..., Any]] = {
    "builtins.getattr": _member,
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    "builtins.list": list,
    "builtins.dict": dict,
    "builtins.slice": slice,
    "builtins.complex": complex,
    "builtins.bytearray": _byte_array,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default_dict,
    "torch.Size": tuple,
}


def _fresh(factory: Callable[..., Any]) -> Callable[..., Any]:
    return factory if isinstance(factory, type) else functools.partial(factory)
