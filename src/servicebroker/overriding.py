"""`override`: the mark of a method that replaces one of its base class.

mypy demands the mark (`explicit-override`), and refuses a marked method whose base class has no method of its name.
So a method cannot be left behind when the method of its base class gets another name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import override as override  # only type checkers need it, and they have this package
else:

    def override(method: Any) -> Any:
        """Return the method as it is."""
        return method
