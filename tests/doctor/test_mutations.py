"""Doctor's verdict against generate's outcome over mutated checkpoints; `make long` takes 3,000."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.kit.mutation_subjects import SUBJECTS, Subject
from tests.kit.mutations import Mutation, Mutations, judge

COUNT = 60


def test_doctor_and_generate_agree_of_every_mutation(tmp_path: Path) -> None:
    """Of a field that was deleted, retyped or perturbed; and both verdicts do occur."""
    mutations, counted = Mutations(tmp_path), Counter[bool]()
    for number in range(COUNT):
        mutation = mutations.make(number)
        verdicts = judge(mutation)
        assert verdicts.agree, f"{number}, {mutation}: {verdicts}"
        counted[verdicts.taken is not None] += 1
    assert min(counted[True], counted[False]) >= COUNT / 5, counted


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: str(subject.name))
def test_what_is_mutated_runs_without_a_mutation(subject: Subject, tmp_path: Path) -> None:
    """Otherwise every mutation of it would be refused, and nothing said of the mutation."""
    sound = Mutation(subject, Mutations(tmp_path).sound(subject), "nothing")
    verdicts = judge(sound)
    assert verdicts.agree and verdicts.taken == subject.route
