"""TabPFN v1 as a process: training rows and rows to label come in, labels go out.

For an environment with tabpfn 0.1.11, torch and scikit-learn below 1.8 (`make tabpfn`).
"""

import io
import struct
import sys

import numpy as np


def send(stream, **arrays):
    """Write named arrays after their length in bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    stream.write(struct.pack("<q", buffer.tell()) + buffer.getvalue())
    stream.flush()


def receive(stream):
    """Read named arrays."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError("The process of TabPFN has ended; run tabpfn_worker.py by hand to see why.")
    (length,) = struct.unpack("<q", head)
    with np.load(io.BytesIO(stream.read(length))) as file:
        return dict(file)


def main():
    import typing

    import torch.nn.modules.transformer

    torch.nn.modules.transformer.Optional = typing.Optional  # which tabpfn imports from there
    torch.set_num_threads(1)
    from tabpfn import TabPFNClassifier

    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # the package prints
    while True:
        try:
            task = receive(sys.stdin.buffer)
        except EOFError:
            return
        model = TabPFNClassifier(device="cpu")
        model.fit(task["X"], task["y"])
        send(answers, labels=model.predict(task["asked"]))


if __name__ == "__main__":
    main()
