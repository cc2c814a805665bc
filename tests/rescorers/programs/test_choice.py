from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.choice import ChoiceParams, ProgramChoice, measured, within
from es_ttc.rescorers.registry import load, parse_params


def test_a_budget_buys_the_greatest_measured_gain_within_it() -> None:
    for budget in (1.5, 3.0, 5.0, 20.0):
        chosen = within(budget)
        affordable = {one.name: one.delta for one in measured() if one.c <= budget and one.name in CATALOGUE}
        assert chosen is None if not affordable else affordable[str(chosen)] == max(affordable.values())


def test_a_name_chooses_the_program_itself() -> None:
    choice = load("program")
    params = parse_params(choice, {"name": "sentmaxsim"})
    assert choice.needs(params) == load("sentmaxsim").needs(load("sentmaxsim").Params())
    assert isinstance(choice, ProgramChoice)


def test_a_program_from_the_table_has_the_channels_that_it_was_measured_with() -> None:
    choice = load("program")
    program = load(str(within(20.0)))
    params = parse_params(choice, {"budget": 20})
    assert choice.needs(params) == program.needs(parse_params(program, {"lexical": "paper"}))
    named = parse_params(choice, {"name": program.name})
    assert choice.needs(named) == program.needs(parse_params(program, {"lexical": "engine"})) != choice.needs(params)


def test_without_either_there_is_a_program() -> None:
    chosen = ChoiceParams().chosen
    assert CATALOGUE[chosen].passes == 0
    free = {one.name: one.delta for one in measured() if not CATALOGUE[one.name].passes}
    assert free[chosen] == max(free.values())
