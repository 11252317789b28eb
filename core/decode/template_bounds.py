"""A chat template comes from a stranger: is what it would do bounded?

transformers renders templates in jinja2's sandbox, which keeps them from the machine, but lets them
run and grow for ever. So a chat is rendered once before, by the same template with its loops,
texts and products counted; whatever else goes wrong there is left to the real rendering.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import PromptError

MOST_STEPS = 2_000_000
"""Turns of loops and calls of macros, together: some seconds of work."""
MOST_CHARACTERS = 64_000_000
"""Of all texts that are written, those that end up in a variable included."""
MOST_NUMBER = 10_000_000
"""The largest number that a filter or a method is given: a width, a count."""
MOST_BITS = 100_000
STEP, SEEN, COUNTS = (f"_{name}_{secrets.token_hex(8)}" for name in ("step", "seen", "counts"))
"""Names that no template can know, and so not set to something else."""


GENERATION_TAG = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""A tag of transformers' own, which jinja2 alone cannot parse."""


class _Beyond(Exception):
    """A bound was passed; caught in this module."""


@dataclass
class _Counts:
    steps: int = 0
    characters: int = 0

    def step(self) -> None:
        """One turn of a loop."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise _Beyond(f"more than {MOST_STEPS:,} turns of its loops")

    def seen(self, value: Any) -> None:
        """Count a value that is about to be written."""
        self.characters += len(value) if isinstance(value, str) else 8
        if self.characters > MOST_CHARACTERS:
            raise _Beyond(f"more than {MOST_CHARACTERS:,} characters of text")


@pass_context
def _step(context: Context, value: str) -> str:
    """A filter that counts, and changes nothing."""
    context.parent[COUNTS].step()
    return value


@pass_context
def _seen(context: Context, value: Any) -> Any:
    """A filter that looks at a value, and changes nothing."""
    context.parent[COUNTS].seen(value)
    return value


class _Counting(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, of which products and arguments are looked at."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would be too large, before it is made."""
        if operator == "**":
            _require_small_power(left, right)
        elif operator == "*":
            _require_small_product(left, right)
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            _require_length(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _require_small_numbers(_digits(left))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox calls, with arguments of a size that can be meant."""
        _require_small_numbers([*args, *kwargs.values()])
        texts = [getattr(called, "__self__", None), *args]
        for text in texts:
            if isinstance(text, str) and getattr(called, "__name__", "") in (
                "format",
                "format_map",
            ):
                _require_small_numbers(_digits(text))
        return super().call(context, called, *args, **kwargs)


def require_bounded(template: str, variables: Mapping[str, Any]) -> None:
    """PromptError for a template that runs or grows beyond all measure with these variables."""
    counts = _Counts()
    try:
        compiled = _compiled(template)
    except TemplateError:  # the real rendering says so
        return
    try:
        for piece in compiled.generate({**variables, COUNTS: counts}):
            counts.characters += len(piece)
    except _Beyond as exc:
        raise PromptError(
            f"the tokenizer's chat template makes {exc} of this chat; take another template, or "
            "give the prompt with --raw"
        ) from exc
    except Exception:  # a template raises of every kind: the real rendering says what it is
        return


def template_tree(template: str) -> nodes.Template:
    """The syntax tree of a template, in an environment that computes nothing large of it.

    Raises jinja2's TemplateSyntaxError.
    """
    environment = _Counting(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters = {name: _guarded(one) for name, one in environment.filters.items()}
    environment.filters["tojson"] = lambda value, **_: str(value)
    environment.filters |= {STEP: _step, SEEN: _seen}
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    return environment.parse(GENERATION_TAG.sub("", template))


@lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    """The template with its loops counted."""
    tree = template_tree(template)
    _count(tree)
    environment: Any = tree.environment
    return environment.template_class.from_code(
        environment, environment.compile(tree), environment.make_globals(None)
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


def _count(tree: nodes.Template) -> None:
    """Put a count into each loop, macro and output."""
    repeated: list[nodes.For | nodes.Macro] = [
        *tree.find_all(nodes.For),
        *tree.find_all(nodes.Macro),
    ]
    for one in repeated:
        one.body.insert(0, nodes.Output([_filter(STEP, nodes.Const(""))]))
    for output in list(tree.find_all(nodes.Output)):
        output.nodes = [
            one if isinstance(one, nodes.TemplateData) else _filter(SEEN, one)
            for one in output.nodes
        ]
    for joined in list(tree.find_all(nodes.Concat)):
        joined.nodes = [_filter(SEEN, one) for one in joined.nodes]


def _filter(name: str, value: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(value, name, [], [], None, None)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is given numbers of a size that can be meant."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _require_small_numbers([*args, *kwargs.values()])
        return function(*args, **kwargs)

    return guarded


def _digits(text: str) -> list[int]:
    """The numbers in a format, its widths among them."""
    return [int(one) for one in re.findall(r"\d{1,12}", text)]


def _require_small_numbers(values: Iterable[Any]) -> None:
    if any(isinstance(one, int) and abs(one) > MOST_NUMBER for one in values):
        raise _Beyond(f"a number above {MOST_NUMBER:,} a width or a count")


def _require_length(length: int) -> None:
    if length > MOST_CHARACTERS:
        raise _Beyond(f"more than {MOST_CHARACTERS:,} characters of text")


def _require_small_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        if left.bit_length() * right > MOST_BITS:
            raise _Beyond("a number of more digits than can be meant")


def _require_small_product(left: Any, right: Any) -> None:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(count, int):
            _require_length(len(sequence) * max(0, count))
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MOST_BITS:
            raise _Beyond("a number of more digits than can be meant")
