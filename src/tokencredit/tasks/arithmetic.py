"""The world of the built-in tasks: facts mod 10, problems made of them, and how both are written.

A problem is a few steps, each one fact to compute, and the labels of the steps whose results are asked::

    prompt       S1 7 + 5 ; S2 3 * 4 ; S3 1 - 9 ; S4 2 + 2 ; ? S3
    completion   S1 hmm so 7 + 5 = 2 ; S2 well 3 * 4 = 4 ; S3 okay 1 - 9 = 2 ; S4 now 2 + 2 = 4 ; ans 2

A step that names no first operand (``S2 * 4``) takes the result of the step before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tokencredit.errors import UsageError

Fact = tuple[int, str, int]
"""First operand, operator, second operand."""

OPERATORS = ("+", "-", "*")
DIGITS = tuple("0123456789")
FACTS: tuple[Fact, ...] = tuple((a, op, b) for op in OPERATORS for a in range(10) for b in range(10))
LABELS = ("S1", "S2", "S3", "S4")
FILLERS = ("hmm", "so", "well", "now", "then", "okay", "let", "me", "see", "next", "we", "get")
EQUALS, END_OF_STEP, ASK, MARKER = "=", ";", "?", "ans"

HELD_OUT = 1_000_000
"""Problem seeds from here on are held out: training draws its problems from seeds below."""


def result(fact: Fact) -> int:
    """The right result of a fact, mod 10.

    ``*`` stands for 7a + 3b + 1: as 7 and 10 share no divisor, every operator maps uniform operands to a
    uniform result, so that no answer is likelier than another and an error never heals by itself.
    """
    a, op, b = fact
    if op == "+":
        return (a + b) % 10
    if op == "-":
        return (a - b) % 10
    return (7 * a + 3 * b + 1) % 10


@dataclass(frozen=True)
class Step:
    """One step of a problem; ``first`` is None where it takes the result of the step before."""

    first: int | None
    operator: str
    second: int

    def fact(self, previous: int | None) -> Fact:
        """The fact this step computes, given the result of the step before it."""
        first = previous if self.first is None else self.first
        if first is None:
            raise UsageError("the problem's first step has no first operand: give it one, as in 'S1 7 + 5 ;'")
        return first, self.operator, self.second


@dataclass(frozen=True)
class Problem:
    """Steps to compute and the indices of those whose results are the answer."""

    steps: tuple[Step, ...]
    asked: tuple[int, ...]

    @property
    def prompt(self) -> str:
        """The problem as the policy reads it."""
        words: list[str] = []
        for label, step in zip(LABELS, self.steps, strict=False):
            first = [] if step.first is None else [str(step.first)]
            words += [label, *first, step.operator, str(step.second), END_OF_STEP]
        return " ".join([*words, ASK, *(LABELS[i] for i in self.asked)])

    def results(self, say: Callable[[Fact], int] = result) -> list[int]:
        """Each step's result, as ``say`` has it (rightly, by default); a chain goes on from what was said."""
        said: list[int] = []
        for step in self.steps:
            said.append(say(step.fact(said[-1] if said else None)))
        return said

    @property
    def answer(self) -> str:
        """The right answer: the asked results with single spaces between."""
        results = self.results()
        return " ".join(str(results[i]) for i in self.asked)

    @property
    def path(self) -> frozenset[int]:
        """Indices of the steps that the answer depends on: the asked ones and those that lead to them."""
        steps = set(self.asked)
        for i in reversed(range(len(self.steps))):
            if i in steps and i > 0 and self.steps[i].first is None:
                steps.add(i - 1)
        return frozenset(steps)


def parse_prompt(prompt: str) -> Problem:
    """The problem that a prompt states; the inverse of ``Problem.prompt``.

    Raises:
        UsageError: the text is not a prompt of the built-in tasks.
    """
    try:
        body, asked = prompt.split(ASK)
        steps = []
        for i, text in enumerate(body.split(END_OF_STEP)[:-1]):
            label, *first, operator, second = text.split()
            if label != LABELS[i] or operator not in OPERATORS or len(first) > 1:
                raise ValueError(text)
            given = DIGITS.index(first[0]) if first else None
            steps.append(Step(given, operator, DIGITS.index(second)))
        problem = Problem(tuple(steps), tuple(LABELS.index(label) for label in asked.split()))
        if not problem.asked or max(problem.asked) >= len(steps):
            raise ValueError(asked)
        problem.results()
    except (ValueError, IndexError):
        example = "S1 7 + 5 ; S2 3 * 4 ; ? S2"
        message = f"not a prompt of the built-in tasks: {prompt[:80]!r}; one looks like {example!r}"
        raise UsageError(message) from None
    return problem


@dataclass(frozen=True)
class World:
    """What sets one task apart: the shape of its problems, and how badly its warm start is taught.

    Attributes:
        steps: steps of a problem, 1 to 4.
        chained: whether each step takes the previous result as its first operand.
        asked: whose results are the answer: ``one`` step drawn at random, the ``last`` one, or ``all``.
        mistaught: share of the facts that the warm start teaches badly.
        p_right: probability that a badly taught fact shows its right result in the warm-start data.
        filler: fewest and most filler words in a step.
    """

    steps: int
    chained: bool
    asked: str
    mistaught: float
    p_right: float
    filler: tuple[int, int]

    @property
    def longest_completion(self) -> int:
        """Tokens of the longest completion that the warm start shows, the end of the text included."""
        words_of_a_step = 1 + self.filler[1] + 6
        words_of_the_answer = 1 + (self.steps if self.asked == "all" else 1)
        return self.steps * words_of_a_step + words_of_the_answer + 1


def draw_problem(world: World, rng: random.Random) -> Problem:
    """A problem of the world, every fact equally likely."""
    steps = []
    for i in range(world.steps):
        first = None if world.chained and i > 0 else rng.randrange(10)
        steps.append(Step(first, rng.choice(OPERATORS), rng.randrange(10)))
    last = world.steps - 1
    asked = {"one": (rng.randrange(world.steps),), "last": (last,), "all": tuple(range(world.steps))}
    return Problem(tuple(steps), asked[world.asked])


@dataclass(frozen=True)
class Teacher:
    """Says results as the warm-start data shows them.

    Attributes:
        wrong: the badly taught facts, each with its one wrong value.
        p_right: probability that a badly taught fact is said rightly.
    """

    wrong: dict[Fact, int]
    p_right: float

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> Teacher:
        """A teacher for the world: the same share of every operator's facts is badly taught."""
        wrong: dict[Fact, int] = {}
        for op in OPERATORS:
            facts = [fact for fact in FACTS if fact[1] == op]
            for fact in sorted(rng.sample(facts, round(world.mistaught * len(facts)))):
                wrong[fact] = rng.choice([v for v in range(10) if v != result(fact)])
        return cls(wrong, world.p_right)

    def say(self, fact: Fact, rng: random.Random) -> int:
        """The result shown this time."""
        if fact in self.wrong and rng.random() >= self.p_right:
            return self.wrong[fact]
        return result(fact)


def write_completion(
    problem: Problem, results: list[int], filler: tuple[int, int], rng: random.Random
) -> str:
    """A worked solution with the given results; random filler words (fewest, most) open each step."""
    words: list[str] = []
    for i, (step, value) in enumerate(zip(problem.steps, results, strict=True)):
        first, operator, second = step.fact(results[i - 1] if i else None)
        words += [LABELS[i], *rng.choices(FILLERS, k=rng.randint(*filler))]
        words += [str(first), operator, str(second), EQUALS, str(value), END_OF_STEP]
    return " ".join([*words, MARKER, *(str(results[i]) for i in problem.asked)])
