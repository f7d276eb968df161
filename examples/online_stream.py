"""A stream that changes: the encoder and its dictionary follow, and say when it happened.

    python examples/online_stream.py

Patches of brick, then of grass, then of gravel; each chunk is measured before anything is learned
from it. The dictionary that stayed with brick, even with exact codes, falls behind.
"""

import pursuit as pu
from pursuit.datasets import textures

BLOCK, ATOMS, LAM = 1500, 64, 1.0

brick = pu.learn(textures.patches(2000, names=("brick",), seed=10), ATOMS, LAM)
encoder = pu.CoordinateEncoder(
    pu.models.Lasso(brick, LAM),
    layers=4,
    coordinates=[8, 8, 16, ATOMS],  # how many coefficients a layer may change
    step="model",  # scalars alone are learned: they need the fewest samples
    momentum=True,
    final="partial",
)
learner = pu.OnlineLearner(encoder)
stayed = pu.models.Lasso(brick, LAM)

print("texture   objective   of the brick dictionary   drift")
for number, name in enumerate(textures.NAMES):
    x = textures.patches(BLOCK, names=(name,), seed=number)
    peak = 0.0
    for batch in x.split(250):  # in whatever pieces it comes
        learner.partial_fit(batch)
        peak = max(peak, learner.drift)
    last = list(learner.history)[-5:]
    objective = sum(point.objective for point in last) / len(last)
    exact = pu.solve(stayed, x[-500:]).objective.mean()
    print(f"{name:8}  {objective:9.2f}   {exact:23.2f}   {peak:5.2f}")
print(f"changes noticed at samples {list(learner.changes)}; true ones: {[BLOCK, 2 * BLOCK]}")
