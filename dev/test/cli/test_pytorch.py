#!/usr/bin/env python3
"""The optimizers beside PyTorch's, on random tensors.

    dev/test/cli/test_pytorch.py PROGRAM [--case WORD]      PROGRAM: build/cpu-fp32/optimizer_steps

AdamW and SGD with momentum are torch.optim's, clipping is torch's, Lion is the formula of its paper (Chen et al. 2023,
Program 1; PyTorch has none). The reference is PyTorch in double. Weights, states and average must be as near to it as
PyTorch's own fp32 is, within a factor of 4, after every step. Tensors are sharded over 2 ranks.
"""

import os
import subprocess
import sys
import tempfile

import numpy
import torch

MATRIX, VECTOR, STEPS = 5000, 77, 20
NUMEL = MATRIX + VECTOR
STATES = {"adamw": ["exp_avg", "exp_avg_sq"], "sgd": ["momentum_buffer"], "lion": ["m"]}


class Lion(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas):
        super().__init__(groups, dict(lr=lr, betas=betas, weight_decay=0.0))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in group["params"]:
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                update = (beta1 * m + (1 - beta1) * w.grad).sign()
                w.sub_(group["lr"] * (update + group["weight_decay"] * w))
                m.mul_(beta2).add_(w.grad, alpha=1 - beta2)


def optimizer_of(name, matrix, vector, h):
    groups = [dict(params=[matrix], weight_decay=h["decay"]), dict(params=[vector], weight_decay=0.0)]
    betas = (h["beta1"], h["beta2"])
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=h["lr"], betas=betas, eps=h["eps"])
    if name == "sgd":
        return torch.optim.SGD(groups, lr=h["lr"], momentum=h["beta1"])
    return Lion(groups, lr=h["lr"], betas=betas)


def in_pytorch(name, weights, gradients, h, dtype):
    """For each step: weights, states, average, each of NUMEL elements; and the norms."""
    tensors = [torch.tensor(w, dtype=dtype) for w in numpy.split(weights, [MATRIX])]
    optimizer = optimizer_of(name, *tensors, h)
    average = torch.cat(tensors)
    rows, norms = [], []
    for gradient in gradients:
        for w, g in zip(tensors, numpy.split(gradient, [MATRIX])):
            w.grad = torch.tensor(g, dtype=dtype)
        norms.append(float(torch.nn.utils.clip_grad_norm_(tensors, h["max_norm"])))
        optimizer.step()
        average = average + (1 - h["ema"]) * (torch.cat(tensors) - average)
        states = [torch.cat([optimizer.state[w][s] for w in tensors]) for s in STATES[name]]
        rows.append([x.to(torch.float64).numpy().copy() for x in [torch.cat(tensors), *states, average]])
    return numpy.array(rows), norms


def in_engine(program, ranks, kind, stage, weights, gradients, h):
    with tempfile.NamedTemporaryFile() as file:
        numpy.concatenate([weights, *gradients]).astype(numpy.float32).tofile(file.name)
        numbers = [kind, stage, h["lr"], h["beta1"], h["beta2"], h["eps"], h["decay"], h["max_norm"], h["ema"], STEPS]
        command = ["mpirun", "-np", str(ranks), program, *map(repr, numbers), file.name]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if result.returncode:
            raise RuntimeError(result.stdout + result.stderr)
        out = numpy.fromfile(file.name, numpy.float32)[(1 + STEPS) * NUMEL :]
        norms = [float(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("norm")]
        return out.reshape(STEPS, -1, NUMEL).astype(numpy.float64), norms


def compare(program, name, kind, stage, h):
    random = numpy.random.default_rng(7 * kind + stage)
    weights = random.standard_normal(NUMEL).astype(numpy.float32)
    gradients = (random.standard_normal((STEPS, NUMEL)) * 0.1).astype(numpy.float32)
    h = {k: float(numpy.float32(v)) if k != "ema" else v for k, v in h.items()}  # as the engine takes them
    want, want_norms = in_pytorch(name, weights, gradients, h, torch.float64)
    theirs, _ = in_pytorch(name, weights, gradients, h, torch.float32)
    ours, norms = in_engine(program, 2, kind, stage, weights, gradients, h)
    if ours.shape != want.shape:
        return f"{ours.shape} numbers, not {want.shape}"
    if not numpy.allclose(norms, want_norms, rtol=1e-6):
        return f"norms {norms[:3]}, not {want_norms[:3]}"
    worst = 0
    for i, what in enumerate(["weights", *STATES[name], "average"]):
        # A sign that rounding decides may differ: Lion's weights are 2 lr apart then.
        off = numpy.abs(ours[:, i] - want[:, i])
        allowed = numpy.abs(theirs[:, i] - want[:, i])
        same = off < h["lr"] / 2 if name == "lion" else numpy.full(off.shape, True)
        if (~same).mean() > 1e-3:
            return f"{what}: {(~same).sum()} of {same.size} differ by more than rounding"
        limit = 4 * allowed[allowed < (h["lr"] / 2 if name == "lion" else numpy.inf)].max() + 1e-9
        worst = max(worst, off[same].max() / limit)
        if off[same].max() > limit:
            return f"{what}: off by {off[same].max():.3g}, PyTorch's fp32 by {limit / 4:.3g}"
    print(f"      largest error: {4 * worst:.2f} of that of PyTorch {torch.__version__} in fp32")
    return None


def main():
    program = sys.argv[1]
    word = sys.argv[sys.argv.index("--case") + 1] if "--case" in sys.argv else ""
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
    os.environ["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    usual = dict(lr=0.01, beta1=0.9, beta2=0.95, eps=1e-8, decay=0.1, max_norm=1.0, ema=0.9)
    passed = failed = 0
    for kind, name in enumerate(["adamw", "sgd", "lion"]):
        for stage, changes in [(2, {}), (0, dict(max_norm=1e9, decay=0.0)), (3, dict(beta1=0.5, beta2=0.99, lr=0.1))]:
            case = f"{name}, stage {stage}, {changes or 'usual hyperparameters'}"
            if word not in case:
                continue
            wrong = compare(program, name, kind, stage, {**usual, **changes})
            passed, failed = passed + (not wrong), failed + bool(wrong)
            print(f"FAIL  {case}: {wrong}" if wrong else f"ok    {case}")
    if word and not passed + failed:
        print(f'no case has "{word}" in its name')
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or not passed


if __name__ == "__main__":
    sys.exit(main())
