"""A stream that changes: the encoder and its dictionary adapt, and the changes are detected.

    python examples/online_stream.py

Patches of brick, then of grass, then of gravel. The objective of each chunk is measured before
the encoder learns from it. The fixed dictionary of brick does worse, even with exact codes.
"""

import pursuit as pu
from pursuit.datasets import textures

BLOCK, ATOMS, LAM = 1500, 64, 1.0

brick = pu.learn(textures.patches(2000, names=("brick",), seed=10), ATOMS, LAM)
encoder = pu.CoordinateEncoder(
    pu.models.Lasso(brick, LAM),
    layers=4,
    coordinates=[8, 8, 16, ATOMS],  # the number of coefficients that each layer changes
    step="model",  # learns scalars only, which need the fewest samples
    momentum=True,
    final="partial",
)
learner = pu.OnlineLearner(encoder)
fixed = pu.models.Lasso(brick, LAM)

print("texture   objective   of the brick dictionary   drift")
for number, name in enumerate(textures.NAMES):
    x = textures.patches(BLOCK, names=(name,), seed=number)
    peak = 0.0
    for batch in x.split(250):  # the size of the pieces does not matter
        learner.partial_fit(batch)
        peak = max(peak, learner.drift)
    last = list(learner.history)[-5:]
    objective = sum(point.objective for point in last) / len(last)
    exact = pu.solve(fixed, x[-500:]).objective.mean()
    print(f"{name:8}  {objective:9.2f}   {exact:23.2f}   {peak:5.2f}")
print(f"changes detected at samples {list(learner.changes)}; true ones: {[BLOCK, 2 * BLOCK]}")
