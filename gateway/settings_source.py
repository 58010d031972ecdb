"""Reads settings from YAML and the environment and remembers, for each value, where it was said.

`read_source` gives a tree of plain values with the environment's twins laid over the file; `build` turns it into the typed
structs. Both raise `SettingsError` with the file and line, or the variable's name, of what is wrong.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from billing.yaml_text import MOST_VALUES, WRONG_VALUE, values
from gateway.secret import Secret

Path_ = tuple[str | int, ...]

PREFIX: Final = "METERGATE_"
NOT_SETTINGS: Final = frozenset({"METERGATE_COMPILED", "METERGATE_CONFIG", "METERGATE_URL"})
"""Variables of the command line (`--config`, the address of the admin API), not of the configuration."""
FOREIGN: Final = re.compile(
    r"METERGATE_(?:(?:\w+_)?SERVICE_(?:HOST|PORT)(?:_\w+)?|(?:\w+_)?PORT(?:_\d+_(?:TCP|UDP)(?:_\w+)?)?)$"
)
"""What Kubernetes injects for a Service whose name begins with `metergate`."""


class SettingsError(Exception):
    """A configuration that cannot be used. The message says the place, the setting and what to do."""


@dataclass(slots=True)
class Source:
    """The tree of values, and the place where each was said, by its path."""

    name: str
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    tree: dict[str, Any] = field(default_factory=dict)
    places: dict[Path_, str] = field(default_factory=dict)
    from_environment: set[Path_] = field(default_factory=set)
    unresolved: dict[Path_, SettingsError] | None = None
    """Where there is a dict, it takes what `env:` and `file:` could not give; without one that is raised."""

    def place(self, path: Path_) -> str:
        """Where the value at `path`, or the nearest thing around it, was said."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return self.name

    def error(self, path: Path_, message: str) -> SettingsError:
        return SettingsError(f"{self.place(path)}: {dotted(path)}: {message}")

    def is_text(self, path: Path_) -> bool:
        """Whether the value comes from an environment variable, where everything is written as text."""
        return any(path[:end] in self.from_environment for end in range(1, len(path) + 1))


def dotted(path: Path_) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the configuration"


# --- the file -------------------------------------------------------------------------------------------------------


def read_source(path: Path, environ: Mapping[str, str], settings_type: type) -> Source:
    """The file's values with the environment's twins laid over them."""
    source = Source(str(path), environ)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{path}: cannot read the configuration: {reason}") from error
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is not None and values(root) > MOST_VALUES:
            raise SettingsError(f"{path}: its aliases stand for more than {MOST_VALUES:,} values; write them out")
        tree = None if root is None else _plain(source, root, (), yaml.SafeLoader(""))
    except RecursionError:
        raise SettingsError(f"{path}: it is nested too deeply for a configuration") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        raise SettingsError(f"{path}{at}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    if root is not None:
        if tree is not None and not isinstance(tree, dict):
            raise SettingsError(f"{path}:1: the configuration must be a mapping of settings, such as `providers: …`")
        source.tree = tree or {}
    for name in sorted(
        (name for name in environ if name.startswith(PREFIX)), key=lambda name: (name.count("__"), name)
    ):
        if name not in NOT_SETTINGS and not FOREIGN.match(name):
            _overlay(source, settings_type, name, environ[name])
    return source


def _plain(source: Source, node: yaml.Node, path: Path_, loader: yaml.SafeLoader) -> Any:
    source.places.setdefault(path, f"{source.name}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(_scalar(source, key_node, path, loader))
            place = f"{source.name}:{key_node.start_mark.line + 1}"
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise SettingsError(f"{place}: merge keys (<<) are not supported; write the settings out")
            if key in mapping:
                raise SettingsError(f"{place}: {dotted((*path, key))}: is set twice; keep one")
            source.places[(*path, key)] = place
            mapping[key] = _plain(source, value_node, (*path, key), loader)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_plain(source, child, (*path, index), loader) for index, child in enumerate(node.value)]
    return _scalar(source, node, path, loader)


def _scalar(source: Source, node: yaml.Node, path: Path_, loader: yaml.SafeLoader) -> Any:
    try:
        return loader.construct_object(node)
    except WRONG_VALUE as error:
        raise source.error(path, f"not a plain value: {getattr(error, 'problem', None) or error}") from error


# --- the environment ------------------------------------------------------------------------------------------------


def _overlay(source: Source, settings_type: type, name: str, value: str) -> None:
    """Lay one variable over the tree: METERGATE_SECTION__NAME names `section.name`."""
    parts = name.removeprefix(PREFIX).lower().split("__")
    path: Path_ = ()
    holder: Any = source.tree
    annotation: Any = settings_type
    for depth, part in enumerate(parts):
        key, annotation = _step(source, holder, annotation, part, name)
        path = (*path, key)
        if depth == len(parts) - 1:
            break
        child = holder[key] if _has(holder, key) else None
        if child is None:
            child = [] if get_origin(_bare(annotation)) is list else {}
        elif isinstance(child, str) and source.is_text(path):
            child = _yaml_value(child, name)
        if not isinstance(child, dict | list):
            raise SettingsError(f"{name}: {dotted(path)} is no section, so nothing can be set inside it")
        _put(holder, key, child)
        holder = child
    _put(holder, path[-1], value if value.strip() else None)
    for known in [known for known in source.places if known[: len(path)] == path]:
        del source.places[known]
    source.places[path] = name
    source.from_environment.add(path)


def _step(source: Source, holder: Any, annotation: Any, part: str, name: str) -> tuple[str | int, Any]:
    """The key that one part of a variable's name stands for, and the type of what is there."""
    bare = _bare(annotation)
    if _is_struct(bare):
        hints = get_type_hints(bare, include_extras=True)
        if part not in hints:
            raise SettingsError(f"{name}: no such setting{_nearest(part, hints)}")
        return part, hints[part]
    arguments = get_args(bare)
    if get_origin(bare) is dict and isinstance(holder, dict):
        return next((key for key in holder if _flat(key) == part), part), arguments[1]
    if get_origin(bare) is list and isinstance(holder, list):
        if part.isdigit() and int(part) <= len(holder):
            return int(part), arguments[0]
        for index, item in enumerate(holder):
            if isinstance(item, dict) and _flat(str(item.get("name", ""))) == part:
                return index, arguments[0]
        raise SettingsError(f"{name}: no entry {part!r}; use an index from 0 to {len(holder)} or the entry's name")
    raise SettingsError(f"{name}: no such setting")


def _flat(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", key.lower())


def _has(holder: Any, key: str | int) -> bool:
    return key in holder if isinstance(holder, dict) else isinstance(key, int) and key < len(holder)


def _put(holder: Any, key: str | int, value: Any) -> None:
    if isinstance(holder, list) and key == len(holder):
        holder.append(value)
    else:
        holder[key] = value


def _yaml_value(text: str, name: str) -> Any:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is not None and values(root) > MOST_VALUES:
            raise SettingsError(f"{name}: its aliases stand for more than {MOST_VALUES:,} values; write them out")
        return yaml.safe_load(text)
    except RecursionError:
        raise SettingsError(f"{name}: it is nested too deeply for a configuration") from None
    except WRONG_VALUE as error:
        raise SettingsError(f"{name}: not a valid value: {getattr(error, 'problem', None) or 'not YAML'}") from error


# --- the types ------------------------------------------------------------------------------------------------------


def build(annotation: Any, source: Source, path: Path_ = (), value: Any = ...) -> Any:
    """The typed value of the tree at `path`. A null where a setting has a default means the default."""
    if value is ...:
        value = source.tree
    bare = _bare(annotation)
    container = _is_struct(bare) or get_origin(bare) in (dict, list)
    if isinstance(value, str) and source.is_text(path):
        value = _from_text(bare, value, source, path) if container or not _takes_text(bare) else value
    if _is_struct(bare):
        return _build_struct(bare, source, path, value)
    if get_origin(bare) is dict:
        if not isinstance(value, dict):
            raise source.error(path, "must be a mapping of names to settings")
        built = {key: build(get_args(bare)[1], source, (*path, key), item) for key, item in value.items()}
        return _leaf(annotation, built, source, path) if not _is_struct(get_args(bare)[1]) else built
    if get_origin(bare) is list:
        if not isinstance(value, list):
            raise source.error(path, "must be a list")
        items = [build(get_args(bare)[0], source, (*path, index), item) for index, item in enumerate(value)]
        if not items and any(meta.min_length for meta in _metas(annotation)):
            raise source.error(path, "must not be empty")
        return items
    if bare is Secret:
        return _secret(value, source, path)
    if bare is str and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if bare is Path:
        return Path(_leaf(str, value, source, path))
    return _leaf(annotation, value, source, path)


def _build_struct(struct: type, source: Source, path: Path_, value: Any) -> Any:
    if not isinstance(value, dict):
        raise source.error(path, "must be a section of settings")
    hints = get_type_hints(struct, include_extras=True)
    for key in value:
        if key not in hints:
            raise source.error((*path, key), f"unknown setting{_nearest(key, hints)}")
    arguments: dict[str, Any] = {}
    for info in msgspec.structs.fields(struct):
        given = value.get(info.name)
        if given is not None:
            arguments[info.name] = build(hints[info.name], source, (*path, info.name), given)
        elif info.required:
            raise source.error(path, f"lacks `{info.name}`, which must be set")
    return struct(**arguments)


def _secret(value: Any, source: Source, path: Path_) -> Secret:
    """`env:NAME`, `file:/path` or the secret itself; an error never repeats the value."""
    if not isinstance(value, str):
        raise source.error(path, "must be text: env:NAME, file:/path or the secret itself, in quotes")
    return Secret(resolve_text(value, source, path))


def resolve_text(value: str, source: Source, path: Path_) -> str:
    """What `env:NAME` or `file:/path` stands for. Where the source takes note of
    what cannot be had, that stays as it is written."""
    try:
        return _resolved(value, source, path)
    except SettingsError as error:
        if source.unresolved is None:
            raise
        source.unresolved[path] = error
        return value


def _resolved(value: str, source: Source, path: Path_) -> str:
    scheme, _, rest = value.partition(":")
    if scheme == "env":
        resolved = source.environ.get(rest)
        if resolved is None:
            raise source.error(path, f"the environment variable {rest} is not set")
    elif scheme == "file":
        try:
            resolved = Path(rest).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise source.error(path, f"cannot read the secret file {rest}: {reason}") from error
    else:
        return value
    if not resolved:
        raise source.error(path, f"{value} is empty")
    return resolved


def _leaf(annotation: Any, value: Any, source: Source, path: Path_) -> Any:
    bare = _bare(annotation)
    try:
        return msgspec.convert(value, annotation, strict=True)
    except msgspec.ValidationError as error:
        allowed = f"; allowed: {', '.join(map(str, get_args(bare)))}" if get_origin(bare) is Literal else ""
        shown = f" ({value!r})" if isinstance(value, int | float | str) and len(str(value)) < 80 else ""
        raise source.error(path, f"{error}{shown}{allowed}") from error


def _from_text(bare: Any, value: str, source: Source, path: Path_) -> Any:
    parsed = _yaml_value(value, source.place(path))
    if get_origin(bare) is list and isinstance(parsed, str):
        return [part.strip() for part in parsed.split(",") if part.strip()]
    return parsed


def _bare(annotation: Any) -> Any:
    """Without Annotated and without `| None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return _bare(parts[0]) if len(parts) == 1 else annotation
    return annotation


def _metas(annotation: Any) -> Iterable[msgspec.Meta]:
    return (meta for meta in getattr(annotation, "__metadata__", ()) if isinstance(meta, msgspec.Meta))


def _is_struct(bare: Any) -> bool:
    return isinstance(bare, type) and issubclass(bare, msgspec.Struct)


def _takes_text(bare: Any) -> bool:
    if get_origin(bare) is Literal:
        return all(isinstance(choice, str) for choice in get_args(bare))
    return bare in (str, Path, Secret)


def _nearest(key: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean `{found[0]}`?" if found else f"; known here: {', '.join(sorted(known))}"


def check_networks(texts: list[str], source: Source, path: tuple[str | int, ...]) -> None:
    """Raises `SettingsError` that names the entry."""
    for index, text in enumerate(texts):
        try:
            ip_network(text, strict=False)
        except ValueError as error:
            raise source.error((*path, index), f"{text!r} is no IP address or network, such as 10.0.0.0/8") from error
