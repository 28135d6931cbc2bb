"""A hash tree (Merkle): one root stands for many contents, and a short proof shows that a content is under it.

Leaves and nodes are hashed with different prefixes, so that no node passes for a content. A node without a sibling
moves up a level as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple


class Proof(NamedTuple):
    """The siblings on the way from a content to the root; bit n of `sides` is set where sibling n is the left one."""

    sides: int
    siblings: tuple[bytes, ...]


def prove(contents: Sequence[bytes]) -> tuple[bytes, list[Proof]]:
    """Return the root over these contents, one at least, and the proof of each."""
    level = [_leaf(content) for content in contents]
    places = list(range(len(level)))  # of each content's node in the level
    sides = [0] * len(level)
    siblings: list[list[bytes]] = [[] for _ in level]
    while len(level) > 1:
        for content, place in enumerate(places):
            if (place ^ 1) < len(level):
                sides[content] |= (place & 1) << len(siblings[content])
                siblings[content].append(level[place ^ 1])
        level = [_node(*level[left : left + 2]) for left in range(0, len(level), 2)]
        places = [place // 2 for place in places]
    return level[0], [Proof(side, tuple(hashes)) for side, hashes in zip(sides, siblings, strict=True)]


def root_of(content: bytes, proof: Proof) -> bytes:
    """Return the root that the proof leads to from a content."""
    found = _leaf(content)
    for place, sibling in enumerate(proof.siblings):
        found = _node(sibling, found) if proof.sides >> place & 1 else _node(found, sibling)
    return found


def _leaf(content: bytes) -> bytes:
    return sha256(b"\0" + content).digest()


def _node(left: bytes, right: bytes | None = None) -> bytes:
    return left if right is None else sha256(b"\1" + left + right).digest()
