"""Import circles: groups of modules of the product in which each imports each other, at last.

Imports within functions count, imports for types alone do not. `python tools/import_circles.py` prints the groups of
more than two modules, the imports inside each, and ends with 1 when there is one.
"""

from __future__ import annotations

import sys

import grimp
import networkx

LARGEST_CIRCLE = 2  # modules of a circle that is let be


def imports() -> networkx.DiGraph:
    """Return the graph of imports between modules."""
    graph = grimp.build_graph("servicebroker", exclude_type_checking_imports=True, cache_dir=None)
    return networkx.DiGraph(
        (module, imported) for module in graph.modules for imported in graph.find_modules_directly_imported_by(module)
    )


def circles(graph: networkx.DiGraph) -> list[set[str]]:
    """The groups with more than `LARGEST_CIRCLE` modules, the largest first."""
    groups = [set(group) for group in networkx.strongly_connected_components(graph) if len(group) > LARGEST_CIRCLE]
    return sorted(groups, key=lambda group: (-len(group), min(group)))


def main() -> int:
    """Print the circles."""
    graph = imports()
    found = circles(graph)
    for group in found:
        print(f"{len(group)} modules:")
        for module in sorted(group):
            print(f"  {module} imports", *sorted(set(graph.successors(module)) & group), sep="\n    ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
