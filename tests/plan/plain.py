"""The plain twin of `penstock.plan`: the whole order as one list, built sentence by sentence from the design.

Slow and obviously right. The property tests compare the fast plan with it; it holds no tests and shares no code with
the package.
"""

from __future__ import annotations

import numpy as np

Row = tuple[int, int]


def permutation(n, seed, epoch, a, b, kind):
    """The stable argsort of n raw words of Philox(key=[seed, epoch], counter=[0, a, b, kind])."""
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, a, b, kind], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(n).tolist() if n else []
    return sorted(range(n), key=lambda i: (words[i], i))


def line(counts, kind, seed, epoch):
    """The selected rows end to end: (chunk, ordinal); chunks without rows dropped, then permuted unless natural."""
    chunks = [c for c, n in enumerate(counts) if n]
    if kind != "natural":
        chunks = [chunks[i] for i in permutation(len(chunks), seed, epoch, 0, 0, 0)]
    return [(c, r) for c in chunks for r in range(counts[c])]


def lanes_of(rows, num_lanes):
    """The line cut into lanes of N // L rows, the first N mod L with one more."""
    each, longer = divmod(len(rows), num_lanes)
    cut, at = [], 0
    for lane in range(num_lanes):
        size = each + (lane < longer)
        cut.append(rows[at : at + size])
        at += size
    return cut


def blocks_of(lane_rows, lane, num_lanes, block):
    """One lane cut into blocks: block 0 of max(1, B*(l+1)//L) rows, then of B."""
    blocks, at, size = [], 0, max(1, block * (lane + 1) // num_lanes)
    while at < len(lane_rows):
        blocks.append(lane_rows[at : at + size])
        at, size = at + size, block
    return blocks


def order(counts, kind, seed, epoch, num_lanes=None, block=None) -> list[Row]:
    """The global order: every selected row once, (chunk, ordinal) at each position."""
    rows = line(counts, kind, seed, epoch)
    if kind != "lanes":
        return rows
    shuffled = []
    for lane, lane_rows in enumerate(lanes_of(rows, num_lanes)):
        out = []
        for b, members in enumerate(blocks_of(lane_rows, lane, num_lanes, block)):
            out += [members[i] for i in permutation(len(members), seed, epoch, lane, b, 1)]
        shuffled.append(out)
    return [shuffled[p % num_lanes][p // num_lanes] for p in range(len(rows))]


def stays(counts, seed, epoch, num_lanes, block):
    """For each (chunk, lane): the positions of all rows of the blocks that hold a row of the chunk in that lane."""
    found: dict[tuple[int, int], list[int]] = {}
    for lane, lane_rows in enumerate(lanes_of(line(counts, "lanes", seed, epoch), num_lanes)):
        at = 0
        for members in blocks_of(lane_rows, lane, num_lanes, block):
            places = [(at + k) * num_lanes + lane for k in range(len(members))]
            for chunk in dict.fromkeys(c for c, _ in members):
                found.setdefault((chunk, lane), []).extend(places)
            at += len(members)
    return found


def left_positions(total, position, left):
    """The positions that are left, in order."""
    return list(range(position, total)) if left is None else [p for a, b in left for p in range(a, b)]


def repeated(total, position):
    """Padding position N+j repeats position N-1-j, from the end again when there are more than N."""
    return position if position < total else total - 1 - (position - total) % total


def deal(total, left, is_line, world, remainder):
    """The positions dealt to each rank: by turns (lanes) or in contiguous parts (lines)."""
    n = len(left)
    if remainder == "drop":
        left = left[: n // world * world]
    elif remainder == "pad":
        left = left + [total + j for j in range(-n % world)]
    if not is_line:
        return [left[r::world] for r in range(world)]
    sizes = [len(left) // world + (r < len(left) % world) for r in range(world)]
    return [left[sum(sizes[:r]) : sum(sizes[: r + 1])] for r in range(world)]


def batches(positions, batch_size, drop_last):
    """A rank's positions in batches."""
    cut = [positions[i : i + batch_size] for i in range(0, len(positions), batch_size)]
    return cut[:-1] if drop_last and cut and len(cut[-1]) < batch_size else cut


def intervals(positions):
    """Rising positions as pairs [a, b)."""
    out: list[list[int]] = []
    for p in positions:
        if out and out[-1][1] == p:
            out[-1][1] = p + 1
        else:
            out.append([p, p + 1])
    return tuple((a, b) for a, b in out)
