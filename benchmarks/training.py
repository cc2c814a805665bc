"""Training on judged queries: the table of NNN decoding's paper, and the learned heads of appendix C.

    python -m benchmarks.training --parts toollens,hotpotqa,aspects,heads --out reports/training

`toollens`: dense, MMR, COLT, NNN-Fix and NNN-Tr as the paper compares them, but adapters over a frozen encoder in place
of an encoder that is tuned whole; a fifth of the train queries is held out, chooses every parameter and epoch, and the
test queries are read once. `hotpotqa` has test queries only: each fifth is answered by what was learned from the
others (cross-validation). `aspects` is generated: its optimum is known. `heads` learns a head on one collection and
judges it on all. Each seed draws what is held out, the first weights and the batches. What is done is kept in --out, so
a run that was stopped goes on.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import heading, kept, table
from benchmarks.figures import BAR, INK, STRONG, figure, save
from benchmarks.nnn_penalties import difference, penalties, show
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.heads import unit
from es_ttc.lab.evaluation.bootstrap import interval, resampled_means
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.lab.evaluation.report import signed
from es_ttc.lab.evaluation.tuning import fold_of
from es_ttc.lab.training.data import Places, TrainingQueries, TrainingTask, held_out_places, load_task, questions_of
from es_ttc.lab.training.loop import TrainingProgress, train
from es_ttc.lab.training.measures import WINDOW, by_query
from es_ttc.lab.training.options import ColtOptions, DenseOptions, HeadOptions, LoopOptions, NnnOptions
from es_ttc.lab.training.recipes.colt import ColtRecipe
from es_ttc.lab.training.recipes.dense import DenseRecipe
from es_ttc.lab.training.recipes.head import HeadRecipe
from es_ttc.lab.training.recipes.nnn import GRID, NnnRecipe
from es_ttc.rescorers.mmr import greedy
from es_ttc.rescorers.nnn import Dictionary, Penalty, solve
from es_ttc.rescorers.nnn.rescorer import scores
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float32

DATA = Path(__file__).parents[2] / "shared" / "data"
METRICS = ("recall@3", "recall@5", "comp@3", "comp@5")
OBJECTIVE = "comp@5"
METHODS = ("frozen", "dense", "MMR", "COLT", "COLT, one setting", "NNN-Fix", "NNN-Tr", "NNN-Tr, 20 epochs")
FOLDS = 5
MAX_TUNING = 500
COLT_SETTINGS = tuple((layers, balance) for layers in (1, 2, 3) for balance in (0.01, 0.04, 0.16))
LAMBDAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
FAMILIES = ("whiten", "linear", "low-rank", "mlp")
LEARNED_FROM = ("scifact", "toollens", "qmsum-meetings")
JUDGED_ON = (*LEARNED_FROM, "cranfield", "npl-vaswani", "hotpotqa-train-hipporag")
HEAD_QUERIES = 2_000

Values = Mapping[str, Sequence[float]]
"""Each metric query by query."""


@dataclass(frozen=True)
class Plan:
    """How the small configuration trains."""

    dense: LoopOptions
    nnn: LoopOptions
    colt: LoopOptions
    hidden: int
    options: NnnOptions


def plan(seed: int) -> Plan:
    """What the collections get."""
    base = LoopOptions(seed=seed, threads=torch.get_num_threads())
    hidden = 512
    return Plan(
        dense=replace(base, epochs=40, batch=1024, learning_rate=3e-3, patience=4),
        nnn=replace(base, epochs=8, batch=128, learning_rate=1e-3, patience=3),
        colt=replace(base, epochs=40, batch=2048, learning_rate=1e-3, weight_decay=1e-7, patience=6),
        hidden=hidden,
        options=NnnOptions(hidden=hidden, steps=10, decode_steps=60),
    )


def small_plan(seed: int) -> Plan:
    """What the generated task gets: few and small vectors, so more epochs, and no early end where Comp@5 is 0."""
    how = plan(seed)
    return replace(
        how,
        dense=replace(how.dense, batch=256, epochs=40, patience=40),
        nnn=replace(how.nnn, epochs=60, patience=15),
        colt=replace(how.colt, patience=40),
        hidden=256,
        options=replace(how.options, hidden=256, steps=30),
    )


def compared(task: TrainingTask, how: Plan) -> dict[str, Any]:
    """Return every method's values on the test queries, what was chosen, and the courses of training."""
    assert task.test is not None
    found: dict[str, Any] = {"values": {}, "chosen": {}, "courses": {}, "seconds": {}}

    def note(name: str, begun: float, course: TrainingProgress | None = None) -> None:
        found["seconds"][name] = time.process_time() - begun
        if course is not None:
            found["courses"][name] = {"losses": course.losses, "valid": course.valid, "best": course.best}

    found["values"]["frozen"] = values(task.test, by_cosine(task.test, task.documents))
    begun = time.process_time()
    torch.manual_seed(how.dense.seed)
    dense = DenseRecipe(task, DenseOptions(hidden=how.hidden))
    note("dense", begun, train(dense, how.dense))
    tuned = task.mapped(dense.heads())
    assert tuned.test is not None
    found["values"]["dense"] = values(tuned.test, by_cosine(tuned.test, tuned.documents))
    choosing = tuned.valid.part(np.arange(min(MAX_TUNING, len(tuned.valid))))

    begun = time.process_time()
    trade_off = best((one, comp(choosing, by_mmr(choosing, tuned.documents, one))) for one in LAMBDAS)
    found["values"]["MMR"] = values(tuned.test, by_mmr(tuned.test, tuned.documents, trade_off))
    found["chosen"]["MMR"] = {"lambda": trade_off}
    note("MMR", begun)

    begun = time.process_time()
    swept = [colt_with(tuned, how, ColtOptions(layers=one, balance=other)) for one, other in COLT_SETTINGS]
    course, by_colt, setting = best((one, max(one[0].valid)) for one in swept)
    note("COLT", begun, course)
    found["values"]["COLT"] = by_colt
    found["chosen"]["COLT"] = {"layers": setting.layers, "balance": setting.balance}
    found["values"]["COLT, one setting"] = colt_with(tuned, how, ColtOptions(scenes="current"))[1]

    begun = time.process_time()
    l1, l2 = best((one, comp(choosing, by_nnn(choosing, tuned.documents, *one))) for one in GRID)
    found["values"]["NNN-Fix"] = values(tuned.test, by_nnn(tuned.test, tuned.documents, l1, l2))
    found["chosen"]["NNN-Fix"] = {"l1": l1, "l2": l2}
    note("NNN-Fix", begun)

    begun = time.process_time()
    torch.manual_seed(how.nnn.seed)
    options = replace(how.options, l1=l1, l2=l2)
    nnn = NnnRecipe(tuned, options)
    note("NNN-Tr", begun, train(nnn, how.nnn))
    after = tuned.mapped(nnn.heads())
    assert after.test is not None
    found["values"]["NNN-Tr"] = values(after.test, by_nnn(after.test, after.documents, l1, l2))
    found["chosen"]["NNN-Tr"] = {"l1": l1, "l2": l2}
    found["penalties"] = {
        "dense": penalties(tuned.valid.part(np.arange(min(MAX_TUNING, len(tuned.valid)))), tuned.test, tuned.documents),
        "NNN-Tr": penalties(
            after.valid.part(np.arange(min(MAX_TUNING, len(after.valid)))), after.test, after.documents
        ),
    }
    torch.manual_seed(how.nnn.seed)
    longest = NnnRecipe(tuned, options)
    train(longest, replace(how.nnn, epochs=max(20, how.nnn.epochs)))
    further = tuned.mapped(longest.heads())
    assert further.test is not None
    found["values"]["NNN-Tr, 20 epochs"] = values(further.test, by_nnn(further.test, further.documents, l1, l2))
    found["values"]["NNN-Tr, by cosine"] = values(after.test, by_cosine(after.test, after.documents))
    found["values"]["dense, longer"] = values(*longer(tuned, how))
    return found


def colt_with(
    task: TrainingTask, how: Plan, options: ColtOptions
) -> tuple[TrainingProgress, dict[str, list[float]], ColtOptions]:
    """Return a COLT's training, and its values on the test queries."""
    torch.manual_seed(how.colt.seed)
    recipe = ColtRecipe(task, options)
    course = train(recipe, how.colt)
    moved = task.mapped(recipe.heads())
    assert moved.test is not None
    return course, values(moved.test, by_cosine(moved.test, moved.documents)), options


def longer(task: TrainingTask, how: Plan) -> tuple[TrainingQueries, list[list[int]]]:
    """Return dense retrieval with a second pair of adapters: NNN-Tr's parameters and epochs, another loss."""
    torch.manual_seed(how.nnn.seed)
    again = DenseRecipe(task, DenseOptions(hidden=how.hidden))
    train(again, replace(how.dense, epochs=how.nnn.epochs, learning_rate=how.nnn.learning_rate))
    after = task.mapped(again.heads())
    assert after.test is not None
    return after.test, by_cosine(after.test, after.documents)


def by_cosine(questions: TrainingQueries, documents: Float32) -> list[list[int]]:
    return [_window(documents, vector)[:10].tolist() for vector in questions.vectors]


def by_mmr(questions: TrainingQueries, documents: Float32, trade_off: float) -> list[list[int]]:
    found = []
    for vector in questions.vectors:
        window = _window(documents, vector)
        picked, _ = greedy(documents[window] @ vector, documents[window], trade_off, 10)
        found.append(window[picked].tolist())
    return found


def by_nnn(questions: TrainingQueries, documents: Float32, l1: float, l2: float) -> list[list[int]]:
    found = []
    for vector in questions.vectors:
        window = _window(documents, vector)
        x = solve(Dictionary.of(documents[window]), vector, Penalty(l1, l2)).x
        found.append(window[np.argsort(-scores(x), kind="stable")[:10]].tolist())
    return found


def _window(documents: Float32, vector: Float32) -> Places:
    order: Places = np.argsort(-(documents @ vector), kind="stable")[:WINDOW]
    return order


def values(questions: TrainingQueries, ranked: list[list[int]]) -> dict[str, list[float]]:
    return by_query(questions, ranked)


def comp(questions: TrainingQueries, ranked: list[list[int]]) -> float:
    return float(np.mean(by_query(questions, ranked)[OBJECTIVE]))


def best(tried: Iterable[tuple[Any, float]]) -> Any:
    return max(tried, key=lambda one: one[1])[0]


def crossed(folder: Path, encoder: Encoder, seed: int) -> dict[str, Any]:
    """Return the same of a collection without train queries: each fifth by what was learned from the others."""
    whole = load_task(folder, encoder, seed=seed, train_split="test")
    both = joined(whole.train, whole.valid)
    questions = both.part(np.argsort(np.array(both.texts)))  # the same order for every seed
    fold = fold_of(len(questions), FOLDS, seed)
    order = np.concatenate([np.flatnonzero(fold == one) for one in range(FOLDS)])
    parts = []
    for one in range(FOLDS):
        rest = np.flatnonzero(fold != one)
        learn, choose = held_out_places(len(rest), seed)
        task = replace(
            whole,
            train=questions.part(rest[learn]),
            valid=questions.part(rest[choose]),
            test=questions.part(np.flatnonzero(fold == one)),
        )
        parts.append(compared(task, plan(seed)))
    merged: dict[str, Any] = {"values": {}, "chosen": [part["chosen"] for part in parts], "courses": {}, "seconds": {}}
    for name in parts[0]["values"]:
        together = {m: np.concatenate([part["values"][name][m] for part in parts]) for m in parts[0]["values"][name]}
        merged["values"][name] = {metric: found[np.argsort(order)].tolist() for metric, found in together.items()}
    for name in parts[0]["seconds"]:
        merged["seconds"][name] = sum(part["seconds"][name] for part in parts)
    return merged


def joined(one: TrainingQueries, other: TrainingQueries) -> TrainingQueries:
    return TrainingQueries(
        [*one.texts, *other.texts],
        np.concatenate([one.vectors, other.vectors]),
        [*one.relevant, *other.relevant],
    )


def aspects(seed: int, *, hidden: bool = True) -> TrainingTask:
    """Make a task whose optimum is known.

    Forty aspects are orthogonal directions. Each has one right document, which is the direction, and six look-alikes a
    third of a right angle away from it. A query asks for three aspects with weights 1, .7 and .5; relevant are their
    right documents. On these vectors NNN decoding is perfect (the right documents rebuild the query exactly) and
    inner products are not: look-alikes of the first aspect are nearer than the right document of the third. What
    methods see is these vectors through a fixed, ill-conditioned linear map with a common part added, as encoders give
    them; a linear map takes it back.
    """
    random = np.random.default_rng(20_260)
    count, dims, alike = 40, 64, 6
    directions = np.linalg.qr(random.standard_normal((dims, dims)))[0][:count]
    own = unit(random.standard_normal((count * alike, dims)).astype(np.float32))
    looking = unit((np.repeat(directions, alike, axis=0) * np.cos(np.pi / 6)).astype(np.float32) + own * 0.5)
    latent = np.concatenate([directions, looking]).astype(np.float32)
    left, right = (np.linalg.qr(random.standard_normal((dims, dims)))[0] for _ in range(2))
    seen = (left * np.geomspace(1, 0.1, dims)) @ right
    common = 1.5 * unit(random.standard_normal((1, dims)).astype(np.float32))

    def through(rows: Float32) -> Float32:
        return unit((rows @ seen.T + common * 0.3).astype(np.float32)) if hidden else rows

    def asked(queries: int, drawn: np.random.Generator) -> TrainingQueries:
        wanted = [np.sort(drawn.choice(count, 3, replace=False)).astype(np.intp) for _ in range(queries)]
        weights = [drawn.permutation([1.0, 0.7, 0.5]) for _ in range(queries)]
        rows = np.stack([weight @ directions[one] for weight, one in zip(weights, wanted, strict=True)])
        return TrainingQueries([""] * queries, through(unit(rows.astype(np.float32))), wanted)

    drawn = np.random.default_rng([20_260, seed])
    parts = asked(2000, drawn), asked(500, drawn)
    return TrainingTask("aspects", through(latent), *parts, asked(500, np.random.default_rng(7)))


def headed(encoder: Encoder, seed: int) -> dict[str, Any]:
    """Return nDCG@10 of every head on every collection's test queries, query by query."""
    judged = {name: judging(DATA / name, encoder) for name in JUDGED_ON}
    found: dict[str, Any] = {"frozen": {}, "heads": {}, "seconds": {}}
    for name, (questions, documents) in judged.items():
        found["frozen"][name] = values(questions, by_cosine(questions, documents))["ndcg@10"]
    for learned in LEARNED_FROM:
        task = load_task(DATA / learned, encoder, seed=seed, most_queries=HEAD_QUERIES)
        for family in FAMILIES:
            begun = time.process_time()
            torch.manual_seed(seed)
            recipe = HeadRecipe([task], HeadOptions(family=family))  # type: ignore[arg-type]
            train(recipe, LoopOptions(epochs=30, batch=256, patience=4, seed=seed, threads=torch.get_num_threads()))
            head = recipe.heads()["query"]
            found["seconds"][f"{learned} {family}"] = time.process_time() - begun
            figures = {}
            for name, (questions, documents) in judged.items():
                mapped = replace(questions, vectors=head(questions.vectors))
                figures[name] = values(mapped, by_cosine(mapped, head(documents)))["ndcg@10"]
            figures["(its train queries)"] = values(
                replace(task.train, vectors=head(task.train.vectors)),
                by_cosine(replace(task.train, vectors=head(task.train.vectors)), head(task.documents)),
            )["ndcg@10"]
            figures["(the same, frozen)"] = values(task.train, by_cosine(task.train, task.documents))["ndcg@10"]
            found["heads"].setdefault(learned, {})[family] = figures
    return found


def judging(folder: Path, encoder: Encoder) -> tuple[TrainingQueries, Float32]:
    questions, documents = questions_of(load_collection(folder), encoder)
    return questions, documents


def table_of(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Return the paper's table: means over seeds; intervals of a paired bootstrap over queries of the seeds' means."""
    names = [name for name in (*METHODS, "dense, longer", "NNN-Tr, by cosine") if name in seeds[0]["values"]]
    mean = {
        name: {metric: np.mean([seed["values"][name][metric] for seed in seeds], axis=0) for metric in METRICS}
        for name in names
    }
    lines = []
    for name in names:
        cells = [cell(mean[name][metric], mean["dense"][metric], is_dense=name == "dense") for metric in METRICS]
        spread = np.std([np.mean(seed["values"][name][OBJECTIVE]) for seed in seeds], ddof=min(1, len(seeds) - 1))
        lines.append((name, *cells, f"{spread:.3f}"))
    columns = ("", "R@3", "R@5", "C@3", "C@5", "deviation of C@5 between seeds")
    against = [
        f"{one} - {other}: " + ", ".join(difference(mean[one][metric], mean[other][metric]) for metric in METRICS[2:])
        for one, other in (("NNN-Tr", "COLT"), ("COLT", "dense"), ("NNN-Tr", "NNN-Fix"), ("NNN-Tr", "dense, longer"))
    ]
    return table(columns, lines) + "\nC@3, C@5: " + "; ".join(against) + "\n"


def cell(own: Any, dense: Any, *, is_dense: bool) -> str:
    if is_dense:
        around = interval(resampled_means(own[None])[:, 0])
        return f"{own.mean():.3f} ({around.low:.3f} to {around.high:.3f})"
    return f"{own.mean():.3f}, {difference(own, dense)}"


def heads_table(seeds: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for learned in LEARNED_FROM:
        for family in FAMILIES:
            runs = [seed["heads"][learned][family] for seed in seeds]
            cells = []
            for name in JUDGED_ON:
                own = np.mean([run[name] for run in runs], axis=0)
                shown = difference(own, np.array(seeds[0]["frozen"][name]))
                cells.append(f"*{shown}*" if name == learned else shown)
            fitted = np.mean([np.mean(run["(its train queries)"]) - np.mean(run["(the same, frozen)"]) for run in runs])
            lines.append((learned, family, signed(float(fitted)), *cells))
    frozen = [f"{np.mean(seeds[0]['frozen'][name]):.3f}" for name in JUDGED_ON]
    first = ("", "frozen, nDCG@10", "", *frozen)
    return table(("learned from", "head", "its own train queries", *JUDGED_ON), [first, *lines])


def draw(name: str, seeds: Sequence[Mapping[str, Any]]) -> None:
    """Draw Comp@5 on the held-out queries, epoch by epoch."""
    with figure(7, 3.2) as drawn:
        axes = drawn.subplots()
        for method, colour in (("dense", INK), ("COLT", BAR), ("NNN-Tr", STRONG)):
            for number, seed in enumerate(seeds):
                course = seed["courses"][method]["valid"]
                label = method if number == 0 else None
                axes.plot(range(len(course)), course, color=colour, label=label, linewidth=1.5)
        axes.set_xlabel("epoch (COLT and NNN-Tr begin where dense ended)")
        axes.set_ylabel("Comp@5, held-out queries")
        axes.legend(frameon=False, loc="lower right")
        save(drawn, f"training-{name}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="aspects,hotpotqa,toollens,heads")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--out", type=Path, default=Path("reports/training"))
    parser.add_argument("--plot", action="store_true", help="draw the courses into docs/images")
    arguments = parser.parse_args()
    print(heading("Training", data=arguments.parts, packages=("numpy", "torch")))
    print(f"NNN-Tr: {asdict(plan(0).options)}\n", flush=True)
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder(arguments.encoder, cache_dir=cache), cache / "encodings")
    made: Mapping[str, Callable[[int], dict[str, Any]]] = {
        "toollens": lambda seed: compared(load_task(DATA / "toollens", encoder, seed=seed), plan(seed)),
        "hotpotqa": lambda seed: crossed(DATA / "hotpotqa-train-hipporag", encoder, seed),
        "aspects": lambda seed: compared(aspects(seed), small_plan(seed)),
        "heads": lambda seed: headed(encoder, seed),
    }
    for part in arguments.parts.split(","):
        seeds = [
            kept(arguments.out / f"{part}-{seed}.json", lambda part=part, seed=seed: made[part](seed))  # type: ignore[misc]
            for seed in range(arguments.seeds)
        ]
        print(f"### {part}, {len(seeds)} seeds\n")
        if part == "heads":
            print(heads_table(seeds))
            continue
        print(table_of(seeds))
        if "penalties" in seeds[0]:
            show({name: [seed["penalties"][name] for seed in seeds] for name in seeds[0]["penalties"]})
        print("chosen:", json.dumps([seed["chosen"] for seed in seeds]))
        spent = {name: float(np.mean([seed["seconds"][name] for seed in seeds])) for name in seeds[0]["seconds"]}
        print("processor seconds a seed:", ", ".join(f"{name} {value:.0f}" for name, value in spent.items()), "\n")
        if part == "aspects":
            known = aspects(0, hidden=False)
            assert known.test is not None
            print(f"optimum: {comp(known.test, by_nnn(known.test, known.documents, 0.05, 0.01)):.3f} by NNN decoding,")
            print(f"{comp(known.test, by_cosine(known.test, known.documents)):.3f} by cosine, on the vectors behind\n")
        if arguments.plot and part == "toollens":
            draw(part, seeds)


if __name__ == "__main__":
    main()
