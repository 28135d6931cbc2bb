"""A Merkle tree: one root hash covers many contents, and a short proof shows that a content is under it.

Leaves and nodes are hashed with different prefixes, so that no node can be taken for a content. A node without a
sibling moves up a level unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple


class Proof(NamedTuple):
    """The sibling hashes from a content up to the root. Bit n of `sides` is set if sibling n is the left one."""

    sides: int
    siblings: tuple[bytes, ...]


def prove(contents: Sequence[bytes]) -> tuple[bytes, list[Proof]]:
    """Return the root over these contents (at least one), and the proof of each."""
    level = [_leaf(content) for content in contents]
    positions = list(range(len(level)))  # the position of each content's node in the level
    sides = [0] * len(level)
    siblings: list[list[bytes]] = [[] for _ in level]
    while len(level) > 1:
        for content, position in enumerate(positions):
            if (position ^ 1) < len(level):
                sides[content] |= (position & 1) << len(siblings[content])
                siblings[content].append(level[position ^ 1])
        level = [_node(*level[left : left + 2]) for left in range(0, len(level), 2)]
        positions = [position // 2 for position in positions]
    return level[0], [Proof(side, tuple(hashes)) for side, hashes in zip(sides, siblings, strict=True)]


def root_of(content: bytes, proof: Proof) -> bytes:
    """Return the root that the proof leads to from a content."""
    node = _leaf(content)
    for index, sibling in enumerate(proof.siblings):
        node = _node(sibling, node) if proof.sides >> index & 1 else _node(node, sibling)
    return node


def _leaf(content: bytes) -> bytes:
    return sha256(b"\0" + content).digest()


def _node(left: bytes, right: bytes | None = None) -> bytes:
    return left if right is None else sha256(b"\1" + left + right).digest()
