"""The training job gives the numbers of one process, on any number of ranks."""

import math
from pathlib import Path

import numpy as np
import pytest

from hpcpar import checkpoint, parallel
from hpcpar.comm import reduce_requests
from hpcpar.data import Sampler, TextCorpus
from hpcpar.nn import GPT, Ctx, cast, collect, cross_entropy, cross_entropy_backward
from hpcpar.optim import SGD, AdamW, clip_grad_norm
from hpcpar.random import Key

STEPS = 50
SIZES = "--layers 2 --hidden 16 --heads 2 --seq 8 --batch 5 --dtype float64 --warmup 3"
CONFIGS = {
    "sgd": f"{SIZES} --optimizer sgd --momentum 0.9 --lr 0.1 --weight-decay 0.1 --clip 0",
    "adamw": f"{SIZES} --optimizer adamw --lr 0.01 --dropout 0.1 --clip 0.5",
}
# 122 windows to train on: an epoch has 25 steps, the last of them with 2 samples for all ranks
TEXT = "".join(f"x{i} = {i} + {i * i % 7}\n" for i in range(100)).encode()[:1030]


def corpus():
    return TextCorpus(TEXT, seq=8)


def one_process(config):
    """Train without hpcpar's communication: layers and optimizer alone."""
    key = Key(config.seed)
    model = GPT(layers=2, hidden=16, heads=2, vocab=256, seq=8, dropout=config.dropout)
    params = cast(model.init(key.child("init")), "float64")
    optimizer = SGD(momentum=0.9, weight_decay=0.1)
    if config.optimizer == "adamw":
        optimizer = AdamW(beta2=0.99, no_decay=("*.bias", "*norm*"))
    state, losses = optimizer.init(params), []
    train = corpus().train
    sampler = Sampler(len(train), 5)
    for step in range(STEPS):
        x, y = train[sampler.batch(step)]
        grads = {}
        ctx = Ctx(train=True, key=key.child("dropout"), step=step)
        logits, saved = model.forward(params, x, ctx)
        loss, kept = cross_entropy(logits, y)
        model.backward(params, saved, cross_entropy_backward(kept), collect(grads))
        clip_grad_norm(grads, config.clip or math.inf)
        optimizer.update(params, grads, state, lr=config.lr * min(1, (step + 1) / 3))
        losses.append(float(loss))
    return np.array(losses)


@pytest.fixture(scope="module", params=list(CONFIGS))
def config(request, train_gpt):
    return train_gpt.parse(CONFIGS[request.param].split())


@pytest.fixture(scope="module")
def expected(config):
    return one_process(config)


def train(train_gpt, config, group, steps=STEPS):
    trainer = train_gpt.Trainer(config, corpus(), group)
    for _ in range(steps):
        trainer.train_step()
    return trainer


def test_losses_are_those_of_one_process_at_every_step(ranks, train_gpt, config, expected):
    def body(group):
        losses = np.array(train(train_gpt, config, group).losses)
        assert np.abs(losses - expected).max() < 1e-10
        assert losses[-1] < losses[0] - 0.3

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.threads_only
@pytest.mark.parametrize("mutation", ["equal weights", "no reduction", "sum for mean"])
def test_the_comparison_sees_what_is_wrong(ranks, train_gpt, monkeypatch, mutation):
    config = train_gpt.parse(CONFIGS["sgd"].split())  # adaptive steps hide wrong scales
    expected = one_process(config)

    class Wrong(parallel.DDP):
        def step(self, weight=None, **options):
            if mutation == "equal weights":
                return super().step(weight=1)
            return super().step(weight=weight)

    def no_reduction(self, x):
        return x
        yield

    if mutation == "no reduction":
        monkeypatch.setattr(parallel.GradBucket, "mean", no_reduction)
    elif mutation == "sum for mean":
        total = reduce_requests._total
        monkeypatch.setattr(reduce_requests, "_total", lambda headers: math.sqrt(total(headers)))
    monkeypatch.setattr(train_gpt, "DDP", Wrong)

    def body(group):
        losses = np.array(train(train_gpt, config, group).losses)
        assert np.abs(losses - expected).max() > 1e-6

    ranks(body)


@pytest.mark.sizes(1, 3)
def test_micro_steps_change_nothing(ranks, train_gpt):
    config = train_gpt.parse(f"{CONFIGS['sgd']} --accumulate 3".split())
    expected = one_process(config)

    def body(group):
        losses = np.array(train(train_gpt, config, group).losses)
        assert np.abs(losses - expected).max() < 1e-10

    ranks(body)


@pytest.mark.sizes(2)
@pytest.mark.parametrize(
    "hook",
    ["powersgd", *(pytest.param(h, marks=pytest.mark.slow) for h in ("fp16", "int8", "topk"))],
)
def test_compressed_gradients_train_as_well(ranks, train_gpt, hook):
    config = train_gpt.parse(f"{CONFIGS['adamw']} --dtype float32 --hook {hook}".split())

    def body(group):
        trainer = train(train_gpt, config, group, 40)
        assert trainer.losses[-1] < trainer.losses[0] - 0.3
        assert all(np.isfinite(leaf).all() for leaf in trainer.ddp.state_dict().values()
                   if isinstance(leaf, np.ndarray))  # fmt: skip

    ranks(body)


@pytest.mark.sizes(2)
def test_momentum_comes_before_the_choice_of_top_k(ranks, train_gpt):
    config = train_gpt.parse(f"{CONFIGS['sgd']} --momentum 0.5 --clip 0 --hook topk".split())

    def body(group):
        trainer = train(train_gpt, config, group, 12)
        assert trainer.optimizer.momentum == 0
        assert "momentum=0.5" in repr(trainer.ddp.hooks)
        assert np.isfinite(trainer.losses).all()
        assert any(key.startswith("ddp.hooks.0.momentum.") for key in trainer.state_dict())

    ranks(body)


def test_ranks_may_have_other_numbers_of_steps(ranks, train_gpt):
    config = train_gpt.parse(f"{CONFIGS['sgd']} --steps 12 --uneven".split())

    def body(group):
        trainer = train_gpt.Trainer(config, corpus(), group)
        shown = []
        trainer.train_unevenly(shown.append)
        assert len(shown) == 12 - 6 * group.rank // max(1, group.size - 1)
        assert trainer.step == 12
        for state in (trainer.ddp.params, trainer.optimizer_state):
            for value in state.values():
                if isinstance(value, np.ndarray):
                    assert (group.all_gather(value[None]) == value).all()

    ranks(body)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_types_train_as_well(ranks, train_gpt, dtype):
    config = train_gpt.parse(f"{CONFIGS['adamw']} --dtype {dtype}".split())

    def body(group):
        losses = train(train_gpt, config, group, 40).losses
        assert losses[-1] < losses[0] - 0.3

    ranks(body)


@pytest.mark.sizes(1, 3)
def test_a_checkpoint_goes_on_with_the_same_numbers(ranks, train_gpt, config, expected, tmp_path):
    def body(group):
        path = Path(group.broadcast_object(str(tmp_path))) / str(group.size)
        first = train(train_gpt, config, group, 25)
        first.validate()
        checkpoint.save(path, first.state_dict(), step=first.step, group=group)
        straight = [first.train_step()[0] for _ in range(25)]
        again = train_gpt.Trainer(config, corpus(), group)
        again.load_state_dict(checkpoint.load(path, group=group).state)
        assert [again.train_step()[0] for _ in range(25)] == straight
        assert again.losses == first.losses
        assert again.validation == first.validation
        # and alone, where the ranks were several
        single = group.subgroup([group.rank])
        alone = train_gpt.Trainer(config, corpus(), single)
        alone.load_state_dict(checkpoint.load(path, group=single).state)
        losses = np.array([alone.train_step()[0] for _ in range(25)])
        assert np.abs(losses - expected[25:]).max() < 1e-10

    ranks(body)


def test_stops_on_all_ranks_when_one_wants_to(ranks, train_gpt, config):
    def body(group):
        trainer = train_gpt.Trainer(config, corpus(), group)
        assert trainer.train_step(stop=False)[1] is False
        assert trainer.train_step(stop=group.rank == group.size - 1)[1] is True

    ranks(body)


def test_validation_and_sample_are_the_same_on_all_ranks(ranks, train_gpt, config):
    def body(group):
        trainer = train(train_gpt, config, group, 2)
        found = group.all_gather_object([trainer.validate(), trainer.sample(20)])
        assert all(each == found[0] for each in found)
        windows = corpus().validation
        x, y = windows[range(len(windows))]
        logits, _ = trainer.model.forward(trainer.ddp.params, x, Ctx())
        assert abs(found[0][0] - float(cross_entropy(logits, y)[0])) < 1e-12
        assert len(found[0][1].encode("utf-8", "replace")) >= 25

    ranks(body)


def test_another_model_does_not_take_the_checkpoint(train_gpt, config):
    import hpcpar as hp

    state = train_gpt.Trainer(config, corpus(), hp.as_group()).state_dict()
    other = train_gpt.parse([*CONFIGS["sgd"].split(), "--hidden", "32"])
    with pytest.raises(ValueError, match="--hidden 32 differs from the checkpoint's 16"):
        train_gpt.Trainer(other, corpus(), hp.as_group()).load_state_dict(state)


def test_another_text_does_not_take_the_checkpoint(train_gpt, config):
    import hpcpar as hp

    state = train_gpt.Trainer(config, corpus(), hp.as_group()).state_dict()
    other = TextCorpus(TEXT[:-1] + b"?", seq=8)
    with pytest.raises(ValueError, match="--text differs from what the checkpoint was trained on"):
        train_gpt.Trainer(config, other, hp.as_group()).load_state_dict(state)
