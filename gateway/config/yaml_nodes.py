"""YAML text into nodes, each with its line: PyYAML's safe loader with limits. Not here: what the keys mean."""

from typing import Any

import yaml

from gateway.config.values import shortened, shown

MAX_NODES = 100_000
"""The most keys and values of a file, where each use of an alias (`*name`) counts as all that it stands for."""

_CONTAINERS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MERGE = "tag:yaml.org,2002:merge"


class NotYamlError(Exception):
    """Text that is not YAML: the line, from 1, and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class Document(yaml.SafeLoader):
    """The nodes of one YAML document, by PyYAML's safe loader, which here also refuses aliases for too much."""

    def __init__(self, text: str) -> None:
        """Raises `NotYamlError`."""
        self._n_nodes = 0
        self._sizes: dict[int, int] = {}
        try:
            super().__init__(text)
            self.root: yaml.Node | None = self.get_single_node()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, f" (column {mark.column + 1})") if mark is not None else (1, "")
            problem = str(error.problem)
            if problem.startswith("but "):  # the other half of the sentence
                problem = f"{error.context}, {problem}"
            advice = "; indent with spaces" if r"'\t'" in problem else ""
            raise NotYamlError(line, f"not YAML: {shortened(problem)}{column}{advice}") from None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise NotYamlError(line, f"not YAML: {shortened(error.reason)}") from None
        except RecursionError:
            raise NotYamlError(1, "not YAML: nested too deep") from None
        except (ValueError, OverflowError) as error:  # an escape such as "\UFFFFFFFF", which stands for no character
            raise NotYamlError(1, f"not YAML: invalid value: {shortened(str(error))}") from None

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count what is read. A few lines of aliases of aliases can stand for more than fits into any memory."""
        is_alias = self.check_event(yaml.events.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before = self._n_nodes
        node = super().compose_node(parent, index)
        # an alias inside of what it stands for has no size yet, and would have no end
        self._n_nodes += self._sizes.get(id(node), MAX_NODES) if is_alias else 1
        if self._n_nodes > MAX_NODES:
            reason = f"more than {MAX_NODES} keys and values, counting what aliases stand for"
            raise yaml.composer.ComposerError(None, None, reason, mark)
        if not is_alias:
            self._sizes[id(node)] = self._n_nodes - before
        return node

    def value_of(self, node: yaml.Node) -> Any:
        """The plain value of *node*; of a list or mapping only its type, empty. Raises `ValueError`: why there is none.

        PyYAML refuses tags that it does not know. Dates that do not exist, numbers of thousands of digits, and tags
        beside text that they cannot stand for are various errors of Python.
        """
        if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)):
            if node.tag not in _CONTAINERS:
                raise ValueError(f"not YAML: unknown tag {shortened(node.tag)}")
            return {} if isinstance(node, yaml.MappingNode) else []
        try:
            value = self.construct_object(node)
            if isinstance(value, str):
                value.encode()  # a surrogate is not a character
        except Exception as error:
            reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
            raise ValueError(f"not YAML: invalid value: {shortened(str(reason))}") from None
        return value

    def key_of(self, node: yaml.Node) -> str:
        """The text of *node*, which is the key of a mapping. Raises `ValueError`: why it is none."""
        if node.tag == _MERGE:
            raise ValueError("merging with `<<` is not supported; use an alias for a whole value")
        key = self.value_of(node)
        if not isinstance(key, str):
            raise ValueError(f"expected a key that is text, got {shown(key)}; write it in quotes")
        return key


def line_of(node: yaml.Node) -> int:
    """The line of the file, from 1, where *node* begins."""
    return int(node.start_mark.line) + 1
