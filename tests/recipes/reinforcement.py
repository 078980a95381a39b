"""Reinforcement: policies and values, learnt from what an environment answers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recipes.book import recipe
from tests.recipes.loops import adamw, sgd
from tests.recipes.sides import Side


def walk(states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """A toy environment: move along an axis, be paid for being near the origin."""
    after = states.clone()
    after[:, 0] += actions.float() - 0.5
    return after, -after.square().sum(1)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, state: Tensor, action: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.distributions.Categorical(logits=self.net(state))
        loss = -(chosen.log_prob(action) * gain).mean() - 0.01 * chosen.entropy().mean()
        return loss, chosen.probs


@recipe()
def reinforce(side: Side) -> None:
    dice = torch.Generator().manual_seed(3)
    states = torch.randn(8, 4, generator=dice)
    inputs = {"state": states, "action": torch.zeros(8, dtype=torch.long), "gain": torch.zeros(8)}
    run = side.train(Policy(), inputs, sgd)
    for _ in range(5):
        _, chances = run.predict({**inputs, "state": states})
        # Decided with a margin, so that a last bit does not choose another action.
        actions = (torch.rand(8, generator=dice) < chances[:, 1].mul(50).round() / 50).long()
        states, pay = walk(states, actions)
        gain = ((pay - pay.mean()) / (pay.std() + 1e-6)).detach()
        side.note("loss", run.step({"state": states, "action": actions, "gain": gain})[0])
    side.note_all(run)


class Values(nn.Module):
    """Q-learning with a target network: buffers that the script copies over at times."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.target = nn.Linear(4, 2), nn.Linear(4, 2)
        self.target.load_state_dict(self.net.state_dict())
        self.target.requires_grad_(False)

    def forward(self, state: Tensor, action: Tensor, pay: Tensor, after: Tensor) -> Tensor:
        value = self.net(state).gather(1, action[:, None]).squeeze(1)
        best = self.target(after).max(dim=1).values
        return F.huber_loss(value, pay + 0.9 * best)


@recipe()
def deep_q_learning_with_a_soft_target(side: Side) -> None:
    """The target follows inside ``forward``'s program by way of an update after each step."""
    states = torch.randn(16, 4)
    actions = torch.arange(16) % 2
    after, pay = walk(states, actions)
    inputs = {"state": states, "action": actions, "pay": pay, "after": after}
    model = Values()
    for _ in range(3):
        run = side.train(
            model,
            inputs,
            lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.05),
        )
        for _ in range(3):
            side.note("loss", run.step(inputs)[0])
        weights = {name: value.clone() for name, value in run.weights().items()}
        model = Values()
        model.load_state_dict(weights)
        model.target.load_state_dict(model.net.state_dict())
        side.note_all(run)


class ActorCritic(nn.Module):
    """Proximal policy optimization: clipped ratios, a critic and an entropy in one loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.actor, self.critic = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(
        self, state: Tensor, action: Tensor, old: Tensor, gain: Tensor, back: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.body(state).tanh()
        logs = self.actor(hidden).log_softmax(1)
        log = logs.gather(1, action[:, None]).squeeze(1)
        ratio = (log - old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        actor = -torch.minimum(ratio * gain, clipped * gain).mean()
        critic = F.mse_loss(self.critic(hidden).squeeze(1), back)
        entropy = -(logs.exp() * logs).sum(1).mean()
        return actor + 0.5 * critic - 0.01 * entropy, log.detach(), logs.detach()


@recipe()
def proximal_policy_optimization(side: Side) -> None:
    states, actions = torch.randn(16, 4), torch.arange(16) % 2
    _, pay = walk(states, actions)
    inputs = {
        "state": states,
        "action": actions,
        "old": torch.full((16,), -0.7),
        "gain": pay - pay.mean(),
        "back": pay,
    }
    run = side.train(ActorCritic(), inputs, adamw)
    for _ in range(3):
        _, old, _ = run.predict(inputs)
        for _ in range(3):
            side.note("loss", run.step({**inputs, "old": old})[0])
    side.note_all(run)
