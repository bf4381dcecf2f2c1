"""FedTKD's parts against numbers derived by hand, and where the paper leaves an edge open."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from smallest import small_experiment
from torch import Tensor, tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.record import dumps, loads
from fedstill.core.shelf import Storage
from fedstill.experiment.stage import stage
from fedstill.methods import FedTKD
from fedstill.parts.attacks import SecondMax
from fedstill.parts.public_logits import PublicLogits
from fedstill.parts.trust import (
    Identify,
    class_weights,
    client_features,
    fuse,
    fusion_weights,
    levelled_accuracy,
    trusted_by_accuracy,
    trusted_clients,
)


def logs(*shares: float) -> list[float]:
    """Logits whose softmax is these shares."""
    return [math.log(s) for s in shares]


def test_features_are_the_cosines_of_a_class_s_logits() -> None:
    """(6) Class 0: client (1,0,0,1), server (1,0,1,0): 1/(√2·√2) = ½. Class 2: (0,2) against (0,−1): −1.

    Class 1 does not occur and is skipped; the second client says nothing but zeros: 0.
    """
    labels = tensor([0, 2, 0])
    server = tensor([[1.0, 0.0], [0.0, -1.0], [1.0, 0.0]])
    client = tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    found = client_features(torch.stack([client, torch.zeros(3, 2)]), server, labels)
    assert found.shape == (2, 2)
    torch.testing.assert_close(found, tensor([[0.5, -1.0], [0.0, 0.0]]))


def test_features_do_not_depend_on_a_client_s_scale() -> None:
    """A cosine is that of the direction: ten times the logits, the same features."""
    labels = torch.arange(12) % 3
    logits, server = torch.randn(2, 12, 3, generator=torch.Generator().manual_seed(1))
    found = client_features(torch.stack([logits, 10 * logits, server]), server, labels)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[2], torch.ones(3))


def test_the_more_accurate_cluster_is_trusted_and_its_laggards_are_not() -> None:
    """(7), (8) Two groups of features. The first is right on .9 .9 .65, mean .8167: .65 is .1667 below, over ε = .1."""
    features = tensor([[0.9, 0.9], [0.8, 0.9], [0.9, 0.8], [0.1, 0.0], [0.0, 0.1]])
    accuracy = tensor([0.9, 0.9, 0.65, 0.5, 0.4])
    trusted, clusters = trusted_clients(features, accuracy, 0.1, seed=3)
    assert trusted == [0, 1]
    assert clusters[0] == clusters[1] == clusters[2] != clusters[3] == clusters[4]
    assert trusted_clients(features, accuracy, 0.17, seed=3)[0] == [0, 1, 2]


def test_a_client_exactly_epsilon_below_the_mean_is_still_trusted() -> None:
    """Accuracies .8 and .6: mean .7, and .7 − .6 is ε to the last digit of a decimal, not of a float."""
    features = tensor([[1.0, 1.0], [1.0, 0.99], [0.0, 0.0]])
    assert trusted_clients(features, tensor([0.8, 0.6, 0.1]), 0.1, seed=0)[0] == [0, 1]


def test_accuracies_that_hardly_differ_leave_it_to_the_cosines() -> None:
    """Who only lifts the wrong logits stays as accurate: .82 against .80. (8) alone would believe him.

    The difference .02 is within a margin of .05, and the honest cluster's cosines are higher.
    """
    features, accuracy = tensor([[0.9, 0.9], [0.9, 0.8], [0.5, 0.4], [0.4, 0.5]]), tensor([0.8, 0.8, 0.82, 0.82])
    assert trusted_clients(features, accuracy, 0.1, seed=0)[0] == [2, 3]
    assert trusted_clients(features, accuracy, 0.1, seed=0, margin=0.05)[0] == [0, 1]
    assert trusted_clients(features, accuracy, 0.1, seed=0, margin=0.01)[0] == [2, 3]


def test_on_a_tie_the_larger_cluster_is_trusted() -> None:
    features = tensor([[1.0], [0.0], [0.01]])
    assert trusted_clients(features, torch.full((3,), 0.5), 0.1, seed=0)[0] == [1, 2]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_clients_all_alike_are_all_trusted(count: int) -> None:
    features = torch.full((count, 4), 0.7)
    assert trusted_clients(features, torch.linspace(0.1, 0.9, count), 0.1, seed=0) == (list(range(count)), [0] * count)


@pytest.mark.parametrize("malicious", [5, 9])
def test_half_and_all_but_one_malicious(malicious: int) -> None:
    """Ten clients. Trust follows accuracy, not the majority: one honest client against nine is still found."""
    honest = 10 - malicious
    noise = 0.02 * torch.rand(10, 10, generator=torch.Generator().manual_seed(malicious))
    features = noise + torch.cat([torch.full((honest, 10), 0.9), torch.full((malicious, 10), 0.3)])
    accuracy = torch.cat([torch.full((honest,), 0.95), torch.full((malicious,), 0.5)])
    assert trusted_clients(features, accuracy, 0.1, seed=1)[0] == list(range(honest))


def test_fusion_weights_by_hand() -> None:
    """(10)–(12) e^L is 1/p for one sample, the geometric mean of 1/p for several.

    Class 0: client A is sure by ½ and ⅛, e^L = √(2·8) = 4; client B by ½ twice, e^L = 2; C by ½ twice, 2.
    Softmax ½ ¼ ¼, so w = (1 − that)/2 = ¼ ⅜ ⅜. Class 1: p = ¼ ½ ½, e^L = 4 2 2: the same. Logits double with T.
    """
    labels = tensor([0, 0, 1])
    a = [logs(1 / 2, 1 / 2), logs(1 / 8, 7 / 8), logs(3 / 4, 1 / 4)]
    even = [logs(1 / 2, 1 / 2)] * 3
    logits = tensor([a, even, even])
    expected = tensor([[0.25, 0.25], [0.375, 0.375], [0.375, 0.375]])
    torch.testing.assert_close(fusion_weights(logits, labels, 1.0), expected)
    torch.testing.assert_close(fusion_weights(2 * logits, labels, 2.0), expected)


def test_one_trusted_client_has_all_the_weight() -> None:
    """(11) divides by K − 1 = 0: ours is weight 1, so the fusion is that client's logits."""
    logits = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0))
    labels = tensor([0, 1, 2, 0, 1])
    assert fusion_weights(logits, labels, 3.0).tolist() == [[1.0, 1.0, 1.0]]
    torch.testing.assert_close(fuse(logits, labels, 3.0), logits[0])


def test_fusion_sample_by_sample() -> None:
    """(9), (13), (14) All samples are of class 0, with p = ¼ ¾ ¼ ¼ by client A and ¾ ¼ ¾ ¼ by client B.

    e^(L_A − L_B) = ((4 · 4/3 · 4 · 4) / (4/3 · 4 · 4/3 · 4))^¼ = 3^¼: w_A = 1/(1 + 3^¼), w_B = 3^¼/(1 + 3^¼).
    Sample 0: the server is right, its logits count. 1: the server is wrong, only A is right: A's. 2: only B: B's.
    3: nobody is right: w_A A + w_B B.
    """
    wrong, right = logs(1 / 4, 3 / 4), logs(3 / 4, 1 / 4)
    a, b = tensor([wrong, right, wrong, wrong]), tensor([right, wrong, right, wrong]) + 5.0
    server = tensor([[7.0, 1.0], [1.0, 7.0], [1.0, 7.0], [1.0, 7.0]])
    share = 1 / (1 + 3**0.25)
    found = fuse(torch.stack([a, b]), torch.zeros(4, dtype=torch.int64), 1.0, server)
    torch.testing.assert_close(found[0], server[0])
    torch.testing.assert_close(found[1], a[1])
    torch.testing.assert_close(found[2], b[2])
    torch.testing.assert_close(found[3], share * a[3] + (1 - share) * b[3])


def test_weights_among_the_right_clients_sum_to_one() -> None:
    """(13) Three clients, p of the class ½+, ½+, ¼: two are right, their weights are equal, so ½ each."""
    right, wrong = logs(0.6, 0.4), logs(0.25, 0.75)
    logits = tensor([[right], [right], [wrong]]) + tensor([0.0, 2.0, 9.0])[:, None, None]
    torch.testing.assert_close(fuse(logits, tensor([0]), 1.0), tensor([right]) + 1.0)


def test_right_clients_that_weigh_nothing_count_equally() -> None:
    """Two clients; A is right on sample 0 but its mean loss on the class is so large that its weight is 0 in float."""
    logits = tensor([[[1.0, 0.0], [-500.0, 500.0]], [[0.0, 1.0], [1.0, 0.0]]])
    labels = tensor([0, 0])
    assert fusion_weights(logits, labels, 1.0)[0, 0] == 0.0
    torch.testing.assert_close(fuse(logits, labels, 1.0), tensor([[1.0, 0.0], [1.0, 0.0]]))


def test_a_class_absent_from_a_client_is_taken_from_the_others() -> None:
    """A never saw class 1 and always says 0: on class 1 the fusion is B's word, on class 0 both count."""
    labels = tensor([0, 1])
    a, b = tensor([[4.0, 0.0], [4.0, 0.0]]), tensor([[3.0, 0.0], [0.0, 3.0]])
    found = fuse(torch.stack([a, b]), labels, 1.0)
    torch.testing.assert_close(found[1], b[1])
    assert 3.0 < found[0, 0] < 4.0


def test_class_weights_by_hand() -> None:
    """(17)–(19) p of the own class .7 and .4 of three classes: margins .7 − .3/2 = .55 and .4 − .6/2 = .1.

    C_0 = .325, w_0 = (1 − .8)·.325 = .065. Class 1: p = .1, margin .1 − .9/2 < 0: 0. Class 2 does not occur: 0.
    """
    shares = [logs(0.7, 0.2, 0.1), logs(0.4, 0.5, 0.1), logs(0.8, 0.1, 0.1)]
    labels = tensor([0, 0, 1])
    torch.testing.assert_close(class_weights(tensor(shares), labels, 0.8, 1.0), tensor([0.065, 0.0, 0.0]))
    torch.testing.assert_close(class_weights(3 * tensor(shares), labels, 0.8, 3.0), tensor([0.065, 0.0, 0.0]))


def test_the_teacher_s_weight_stays_below_one_minus_beta() -> None:
    """Perfect confidence gives margin 1 and w = 1 − β = .25."""
    sure = 100.0 * torch.eye(4)
    torch.testing.assert_close(class_weights(sure, torch.arange(4), 0.75, 3.0), torch.full((4,), 0.25))


@pytest.fixture(scope="module")
def env() -> Any:
    plan = small_experiment(FedTKD(), models=("mlp",), public=0.2)
    return stage(plan, Storage()).env


def spoken(env: Any, *logits: Tensor) -> list[Reply[PublicLogits]]:
    index = torch.arange(len(env.public))
    return [Reply(3 * k, 10, PublicLogits(each, index)) for k, each in enumerate(logits)]


def test_identify_finds_who_flips_and_says_so(env: Any) -> None:
    """Two clients repeat the labels, two say the next class: only the first two pass, under their own names."""
    classes, labels = env.classes, env.public.y
    honest = 5.0 * torch.eye(classes)[labels]
    flipped = 5.0 * torch.eye(classes)[(labels + 1) % classes]
    rule = Identify(server_epochs=20)
    state, kept = rule.gather(env, rule.init(env, None), spoken(env, honest, flipped, honest + 0.1, flipped + 0.1))
    assert [r.client for r in kept] == [0, 6]
    facts = rule.facts(env, state)
    assert facts["trusted"] == [0, 6]
    assert facts["answered"] == [0, 3, 6, 9]
    assert facts["clusters"][0] == facts["clusters"][2] != facts["clusters"][1] == facts["clusters"][3]
    assert facts["feature_classes"] == sorted(set(labels.tolist()))
    assert set(facts["module_seconds"]) == {"train", "identify"}
    again = loads(dumps(state))
    assert torch.equal(again.features, state.features)
    assert again.trusted == state.trusted


def test_logits_that_are_not_finite_are_never_trusted(env: Any) -> None:
    honest = 5.0 * torch.eye(env.classes)[env.public.y]
    broken = honest.clone()
    broken[3, 2] = float("nan")
    rule = Identify(server_epochs=1)
    state, kept = rule.gather(env, rule.init(env, None), spoken(env, honest, broken))
    assert [r.client for r in kept] == [0]
    assert state.clusters == (0, -1)
    assert torch.isfinite(state.features).all()


def test_what_no_softmax_sees_is_not_held_against_a_client(env: Any) -> None:
    """Ten more on every logit of a sample changes no prediction: the same features, unless compared as they are."""
    honest = 5.0 * torch.eye(env.classes)[env.public.y]
    replies = spoken(env, honest, honest + 10.0)
    for centred, alike in ((True, True), (False, False)):
        rule = Identify(centred=centred, server_epochs=1)
        features = rule.gather(env, rule.init(env, None), replies)[0].features
        assert torch.allclose(features[0], features[1], atol=1e-6) == alike


def test_evidence_is_kept_over_rounds(env: Any) -> None:
    """.8 of what was known and .2 of what is new; a client that is not heard keeps what is known of it."""
    honest = 5.0 * torch.eye(env.classes)[env.public.y]
    other = 5.0 * torch.eye(env.classes)[(env.public.y + 1) % env.classes]
    anew, rule = Identify(memory=0), Identify()
    first, _ = anew.gather(env, anew.init(env, None), spoken(env, honest, other))
    second, _ = anew.gather(env.at(1), first, spoken(env, other))
    begun, _ = rule.gather(env, rule.init(env, None), spoken(env, honest, other))
    torch.testing.assert_close(begun.features, first.features)
    state, _ = rule.gather(env.at(1), begun, spoken(env, other))
    torch.testing.assert_close(state.features, 0.8 * first.features[:1] + 0.2 * second.features)
    assert torch.equal(state.evidence[3], begun.evidence[3])
    accuracy = state.evidence[0][-1]
    assert float(accuracy) == pytest.approx(0.8)  # right on all, then on none


def test_the_server_s_model_goes_on_learning_from_round_to_round(env: Any) -> None:
    rule = Identify()
    reply = spoken(env, torch.zeros(len(env.public), env.classes))
    state, right = rule.init(env, None), []
    for t in range(8):
        state, _ = rule.gather(env.at(t), state, reply)
        right.append(float((rule.logits(env, state).argmax(-1) == env.public.y).float().mean()))
    assert right[-1] > right[0] + 0.2


def test_identify_needs_the_data_s_own_classes(env: Any) -> None:
    with pytest.raises(UsageError, match="own classes"):
        Identify().init(replace(env, public_classes=7), None)


def test_clients_that_show_nearly_the_same_are_all_trusted() -> None:
    """Means .9 and .5 are further apart than .15, means .9 and .8 are not."""
    assert trusted_by_accuracy(tensor([0.9, 0.5, 0.92, 0.48]), 0.15, seed=1)[0] == [0, 2]
    assert trusted_by_accuracy(tensor([0.9, 0.8, 0.92, 0.78]), 0.15, seed=1)[0] == [0, 1, 2, 3]
    assert trusted_by_accuracy(tensor([0.5]), 0.15, seed=1) == ([0], [0])


def test_a_client_s_class_frequencies_are_taken_out_before_it_is_judged() -> None:
    """Two classes, four samples each, logits (m, 0) with margin m for class 0.

    One-sided: m = 3 on class 0, 1 on class 1, so it always says 0: accuracy ½. The constant t with σ(3 − t) + σ(1 − t)
    = 1 is 2, and 3 − 2 > 0 > 1 − 2: all right. A liar that turns the sign of every other sample has as many margins
    above any t as below on both classes: ½, with or without a constant.
    """
    labels = tensor([0, 0, 0, 0, 1, 1, 1, 1])
    margins = tensor([[3.0, 3, 3, 3, 1, 1, 1, 1], [3.0, 3, -3, -3, 1, 1, -1, -1]])
    logits = torch.stack([margins, torch.zeros_like(margins)], -1)
    assert (logits.argmax(-1) == labels).double().mean(1).tolist() == [0.5, 0.5]
    assert levelled_accuracy(logits, labels).tolist() == [1.0, 0.5]
    # a constant on the logits of a class, however large, changes nothing
    assert levelled_accuracy(logits + tensor([5.0, -1.0]), labels).tolist() == [1.0, 0.5]


def test_answers_that_hang_by_a_hair_do_not_outlive_the_constants() -> None:
    """Ten classes, the right one at 6 over noise; second-max raises five others to the largest less 1e-5.

    Every answer of the liar is right as it stands; with any constants at all its ties are broken by them.
    """
    labels, stream = torch.arange(200) % 10, torch.Generator().manual_seed(1)
    honest = 6.0 * torch.eye(10)[labels] + torch.randn(200, 10, generator=stream)
    liar = SecondMax().forged(stream, honest)
    both = torch.stack([honest, liar])
    assert (both.argmax(-1) == labels).double().mean(1).min() > 0.99
    sound, spoilt = levelled_accuracy(both, labels).tolist()
    assert sound > 0.97
    assert spoilt < 0.6


def test_a_client_that_favours_its_own_classes_is_trusted_and_a_liar_is_not(env: Any) -> None:
    """All see the right class at 3. One favours class 0 by 4, so it is right on that class alone; one lies on every
    other sample. Levelled, the one-sided client is as right as the others, and the liar half as often."""
    classes, labels = env.classes, env.public.y
    honest = 3.0 * torch.eye(classes)[labels]
    one_sided = honest + 4.0 * torch.eye(classes)[0]
    turned = torch.where(
        torch.arange(len(labels)) % 4 < 2, labels, (labels + 1 + torch.arange(len(labels)) % 3) % classes
    )
    said = spoken(env, honest, one_sided, 3.0 * torch.eye(classes)[turned], honest + 0.1)
    rule = Identify(levelled=0.05)
    _, kept = rule.gather(env, rule.init(env, None), said)
    assert [r.client for r in kept] == [0, 3, 9]
    everybody = spoken(env, honest, one_sided, honest, honest + 0.1)
    _, kept = rule.gather(env, rule.init(env, None), everybody)
    assert [r.client for r in kept] == [r.client for r in everybody], "all alike: everybody is trusted"


@pytest.mark.parametrize("unused", [{"epsilon": 0.2}, {"margin": 0.0}, {"centred": False}, {"memory": 0.0}])
def test_settings_that_the_levelled_rule_does_without_are_refused_beside_it(unused: dict[str, Any]) -> None:
    (name,) = unused
    with pytest.raises(UsageError, match=rf"{name}: has no meaning beside levelled = 0.05, .*; set levelled=0"):
        Identify(levelled=0.05, **unused)
    assert Identify(levelled=0, **unused).levelled == 0
