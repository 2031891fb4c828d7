"""Let AgentCompass 1.0.1 itself aggregate generated task details: one JSON line for each case.

    python agentcompass_scores.py SEED COUNT > cases.jsonl

Needs an interpreter that has AgentCompass 1.0.1; imports nothing of this project. A case has the details that went in
(`tasks`), the benchmark's `hierarchy`, and the `metrics` and `summary` that came out.
"""

import json
import random
import sys

from agentcompass.runtime.metrics.contract import MetricContract
from agentcompass.runtime.metrics.report_aggregation import MetricAggregationError, aggregate_metric_report
from agentcompass.runtime.results.render import render_summary_markdown

STATUSES = ["completed"] * 12 + ["run_error", "eval_error", "run_error_or_eval_error", "skipped", "cancelled"]
CATEGORIES = ["easy", "hard", "a/b", "til~de", " padded ", "", None, "ünï|code", "back`tick", 7]


def contract(choose):
    metrics = {}
    primary = choose.choice(["correct", "score"])
    binary = primary == "correct"
    metrics[primary] = {
        "kind": "binary_success" if binary else "scalar",
        "reducers": ["avg", "pass"] if binary else ["avg"],
        "primary": True,
        "display": choose.choice([None, {"label": "The <main> | one", "precision": 2, "unit": "%"}]),
    }
    for number in range(choose.randrange(3)):
        kind = choose.choice(["binary_success", "scalar"])
        reducers = choose.choice([["avg"], [], ["pass", "avg"] if kind == "binary_success" else ["avg"]])
        metrics[f"m{number}.x"] = {"kind": kind, "reducers": reducers, "display": {"label": f"M{number}"}}
    return MetricContract(metrics=metrics), primary


def observation(choose, kind):
    if kind == "binary_success":
        return choose.random() < 0.5
    return choose.choice([0, 1, 0.1, 1e-9, 1e17, -3.25, 1 / 3, choose.random(), choose.randrange(10**6)])


def attempt(choose, metrics):
    status = choose.choice(STATUSES)
    severities = [severity for severity in ("fatal", "error", "warning") if choose.random() < SHARES[severity]]
    issues = [{"severity": s, "phase": "run", "code": "made_up", "message": "made up"} for s in severities]
    kept = {name: observation(choose, spec.kind.value) for name, spec in metrics.items() if choose.random() < 0.85}
    return {"status": status, "metrics": kept, "issues": issues}


SHARES = {"fatal": 0.0, "error": 0.1, "warning": 0.1}


def hierarchy(choose):
    names = ["easy", "hard", "a/b", "til~de", "nobody"]

    def weight():
        return choose.choice([1, 2.5, 0.3])

    inner = {
        "aggregation": choose.choice(["unweighted", "weighted", "weighted_by_count"]),
        "weight": weight(),
        "children": {name: {"weight": weight()} for name in names[:2]},
    }
    children = {"in ner/1": inner} | {name: {"weight": weight()} for name in names[2:]}
    how = choose.choice(["unweighted", "weighted", "weighted_by_count"])
    return {"overall": {"aggregation": how, "children": children}}


def case(choose):
    SHARES["fatal"] = choose.choice([0.0, 0.0, 0.0, 0.1])
    agreed, primary = contract(choose)
    k = choose.choice([1, 1, 2, 3])
    binary = agreed.metrics[primary].kind.value == "binary_success"
    strategy = choose.choice(["avg", "pass"]) if binary else "avg"
    names = choose.sample(CATEGORIES, choose.randrange(1, len(CATEGORIES)))
    tasks = []
    for number in range(choose.choice([1, 2, 5, 12, 40])):
        attempts = {}
        for index in range(1, k + 1):
            if choose.random() < 0.07 and len(attempts) + k - index > 0:
                continue
            attempts[str(index)] = attempt(choose, agreed.metrics)
            if strategy == "pass" and attempts[str(index)]["metrics"].get(primary) is True and choose.random() < 0.9:
                break
        plan = {"k": k, "strategy": strategy}
        category = choose.choice(names)
        tasks.append({"task_id": f"t{number}", "category": category, "attempt_plan": plan, "attempts": attempts})
    how = choose.choice(["micro_weighted", "category_mean"])
    tree = hierarchy(choose) if choose.random() < 0.3 else None
    try:
        report = aggregate_metric_report(
            tasks, contract=agreed, k=k, strategy=strategy, aggregation_mode=how, category_hierarchy=tree
        )
    except (MetricAggregationError, ValueError):
        return None
    model, benchmark = choose.choice(["toy-7b", "a`b", "org/model:1"]), choose.choice(["toy_arith", "x|y"])
    page = render_summary_markdown(model, benchmark.upper(), report)
    metrics = report.model_dump(mode="json")
    return {
        "model": model,
        "benchmark": benchmark,
        "hierarchy": tree,
        "tasks": tasks,
        "metrics": metrics,
        "summary": page,
    }


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    choose = random.Random(seed)
    written = 0
    while written < count:
        found = case(choose)
        if found is not None:
            print(json.dumps(found, ensure_ascii=False, sort_keys=True))
            written += 1


if __name__ == "__main__":
    main()
