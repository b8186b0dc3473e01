"""Whether vGPUs can live side by side in the frame buffer of a card. Pure.

A model, which never forbids what the driver offers: it says whether clearing something could help at all, and so it
errs on the hopeful side. Source: NVIDIA Virtual GPU Software User Guide, "Placement of vGPUs on a physical GPU in
mixed-size mode": a vGPU begins at multiples of its size, that rounded up to the next power-of-two part of the card.
"""

from collections.abc import Iterable


def could_hold(frame_buffer: int | None, sizes: Iterable[int | None], *, mixed: bool) -> bool:
    """Whether vGPUs of these frame buffers, in GB, fit beside each other if all could be placed anew, the big ones
    first. True also where a size is not known."""
    known = [size for size in sizes if size is not None]
    if frame_buffer is None:
        return True
    if sum(known) > frame_buffer:
        return False
    return len(set(known)) <= 1 if not mixed else _placed(frame_buffer, known)


def _placed(frame_buffer: int, sizes: Iterable[int]) -> bool:
    taken: list[tuple[int, int]] = []
    for size in sorted(sizes, reverse=True):
        places = 1 << ((frame_buffer // size).bit_length() - 1)
        stride = frame_buffer // places
        starts = (place * stride for place in range(places))
        free = (start for start in starts if all(start >= end or begin >= start + size for begin, end in taken))
        start = next(free, None)
        if start is None:
            return False
        taken.append((start, start + size))
    return True
