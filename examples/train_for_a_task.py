"""An encoder trained for separation beats the exact solution of the model it is built on.

    python examples/train_for_a_task.py

The model splits a spectrogram into recurring tones (low rank) and a gliding tone (sparse). Its
exact solution minimises the objective of the model, not the error of the separation. Where the
true parts are known, five layers and the dictionary can be trained to minimise that error. Errors
are those of unseen frames. The spectrogram is synthetic, with the same tones in all frames.
"""

import torch

import pursuit as pu
from pursuit.datasets import spectrogram

LAM_STAR, LAM = 7.75, 0.141

train, test = (spectrogram.synthetic(frames, seed=seed) for frames, seed in ((1500, 0), (500, 1)))
dictionary = spectrogram.learn_dictionary(train.mixture, 25, LAM_STAR, LAM)
model = pu.models.RobustNMF(dictionary, LAM_STAR, LAM)


def report(name: str, parts: pu.Parts) -> None:
    errors = [
        float((estimate - true).square().sum() / true.square().sum())
        for estimate, true in ((parts.low_rank, test.low_rank), (parts.sparse, test.sparse))
    ]
    print(f"{name:28} {100 * errors[0]:10.1f} {100 * errors[1]:10.1f}")


print(f"{'error, per cent of energy':28} {'low rank':>10} {'sparse':>10}")
exact = pu.solve(model, test.mixture)
report("exact codes", model.split(exact.codes))

encoder = pu.ProximalEncoder(model, layers=5)
targets = {"low_rank": train.low_rank, "sparse": train.sparse}
supervised = pu.regimes.Supervised()
pu.fit(encoder, train.mixture, targets, regime=supervised, dictionary="gradient", steps=300)
with torch.no_grad():
    report("five layers, supervised", encoder.model.split(encoder(test.mixture)))
