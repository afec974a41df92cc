"""One test for a rule that each of many things must keep: a pytest item for each would cost more than the rule."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def for_each(things: Iterable[T]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Make a test of a rule, which is a function that asserts. It fails with each thing that breaks the rule, and how."""
    checked = list(things)

    def of(rule: Callable[[T], None]) -> Callable[[], None]:
        def test() -> None:
            if not checked:
                raise AssertionError("nothing to check")
            broken = []
            for thing in checked:
                try:
                    rule(thing)
                except AssertionError as error:
                    broken.append(f"{thing}: {error}")
            # Words of its own: pytest rewrites the asserts of the rule's module, not those of this one.
            if broken:
                raise AssertionError("\n".join(broken))

        # Without `__wrapped__`, from which pytest would take the rule's parameter for a fixture.
        test.__name__, test.__doc__ = rule.__name__, rule.__doc__
        return test

    return of
