"""A model's accuracy, checked from outside: inspect_ai and the rows, through /v1, without the platform's code.

    python3 -m venv inspect-env && inspect-env/bin/pip install inspect-ai openai
    INTARSIA_BASE_URL=http://127.0.0.1:8000/v1 INTARSIA_API_KEY=ik_… \
      inspect-env/bin/inspect eval benchmarks/inspect_check/task.py \
      --model openai-api/intarsia/carepath/triage -T rows=examples/health/heldout.jsonl

The accuracy that it prints is the one on the model's page (docs/evals.md). The package is no dependency of ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample, json_dataset
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState, generate


def sample_of(row: dict[str, Any]) -> Sample:
    """Return a row as inspect_ai has it: the user's message alone, since the model brings its own instructions."""
    message = row["message"] if "message" in row else row["messages"][-1]["content"]
    return Sample(input=message, target=json.dumps(row["expected"], sort_keys=True))


@scorer(metrics=[accuracy(), stderr()])
def exact_json() -> Scorer:
    """Take an answer for right that is the expected JSON value."""

    async def score(state: TaskState, target: Target) -> Score:
        answer = state.output.completion
        try:
            right = json.loads(answer) == json.loads(target.text)
        except ValueError:
            right = False
        return Score(value=CORRECT if right else INCORRECT, answer=answer)

    return score


@task
def heldout(rows: str) -> Task:
    """Ask every row of a JSONL file once. A relative path is one of this repository: inspect_ai changes the folder."""
    path = Path(__file__).resolve().parents[2] / rows
    return Task(dataset=json_dataset(str(path), sample_of), solver=generate(), scorer=exact_json())
