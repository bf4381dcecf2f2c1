"""What secure sums cost: bytes of all messages beside plain vectors, seconds of all phases beside an epoch of training.

python benchmarks/secrecy.py                     # 10 clients, 61,706 weights (LeNet-5)
"""

import sys
import time

import numpy as np
import torch
from measured import machine, note

from fedstill.models import initial
from fedstill.parts.secrecy import Member, total
from fedstill.parts.secure_sums import Scale


def epoch(samples: int = 500, batch: int = 50) -> float:
    """Seconds of an epoch of LeNet-5 on this machine, one thread; the second of two."""
    torch.set_num_threads(1)
    module = initial("lenet5", (1, 28, 28), 10, 0).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x, y = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
    for _ in range(2):
        began = time.perf_counter()
        for some in torch.split(torch.arange(samples), batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x[some]), y[some]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return time.perf_counter() - began


def main(clients: int = 10, weights: int = 61_706) -> None:
    about, threshold = machine(), -(-2 * clients // 3)
    vectors = {k: np.random.default_rng(k).normal(size=weights) for k in range(clients)}
    scale = Scale(32.0, clients)
    spent, sent = {}, {}

    began = time.perf_counter()
    members = {k: Member(k, threshold) for k in vectors}
    keys = {k: m.public() for k, m in members.items()}
    spent["keys"], sent["keys"] = time.perf_counter() - began, 64 * clients * (1 + clients)  # up, and down to everybody

    began = time.perf_counter()
    letters = {k: m.shares(keys) for k, m in members.items()}
    spent["shares"] = time.perf_counter() - began
    sent["shares"] = 2 * sum(len(letter) for box in letters.values() for letter in box.values())  # through the hub

    began = time.perf_counter()
    lost = {clients - 1}
    arrived = {
        k: m.masked({s: box[k] for s, box in letters.items() if s != k}, scale.whole(vectors[k]))
        for k, m in members.items()
        if k not in lost
    }
    spent["masked"], sent["masked"] = time.perf_counter() - began, sum(words.nbytes for words in arrived.values())

    began = time.perf_counter()
    revealed = [members[k].unmask(list(arrived), lost) for k in arrived]
    found = scale.real(total(arrived, list(letters), keys, revealed, threshold), len(arrived))
    spent["unmask"], sent["unmask"] = time.perf_counter() - began, 33 * clients * len(arrived)

    plain = sum(vectors[k] for k in arrived)
    print(f"{clients} clients, {weights:,} weights, {threshold} needed, 1 lost after sharing")
    for phase in spent:
        print(f"{phase:<8} {1000 * spent[phase]:9.1f} ms {sent[phase]:>12,} bytes")
    as_is = 4 * weights * len(arrived)
    numbers = {
        "bytes": sum(sent.values()) / as_is,
        "time": sum(spent.values()) / clients / epoch(),
        "error": float(np.abs(found - plain).max()) / (len(arrived) * scale.step / 2),
    }
    print(f"bytes: {numbers['bytes']:.3f} times those of plain single precision")
    print(f"seconds a client: {numbers['time']:.2f} times those of an epoch of LeNet-5 on 500 samples")
    print(f"largest error of the sum: {numbers['error']:.2f} of the bound")
    note("secrecy", numbers, about)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] if word != "--record"))
