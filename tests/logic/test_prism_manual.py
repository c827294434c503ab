"""The properties that PRISM's manual shows for discrete-time models, in the order of its pages (version 4.8).

Each is read with PRISM's meaning, or refused with a sentence that says why. Left out are those for continuous time,
games and intervals of probabilities, and lines that stand for several properties ("P bound [ pathprop ]").
"""

import pytest

from psyco._src.core.errors import RequirementError
from psyco._src.logic.parser import parse

ACCEPTED = [
    # text, and an equal requirement in our syntax
    ('P>=1 [ F "terminate" ]', 'P>=1 [ F "terminate" ]'),
    ("P<0.1 [ F<=100 num_errors > 5 ]", "P<0.1 [ F[0,100] (num_errors > 5) ]"),
    ("S<0.01 [ num_sensors < min_sensors ]", "S<0.01 [ num_sensors < min_sensors ]"),
    ("P=? [ !proc2_terminate U proc1_terminate ]", "P=? [ (!proc2_terminate) U proc1_terminate ]"),
    ("S=? [ queue_size / max_size > 0.75 ]", "S=? [ (queue_size / max_size) > 0.75 ]"),
    ("P<0.01 [ X y=1 ]", "P<0.01 [ X (y = 1) ]"),
    ("P>0.5 [ z<2 U z=2 ]", "P>0.5 [ (z < 2) U (z = 2) ]"),
    ("P<0.1 [ F z>2 ]", "P<0.1 [ F (z > 2) ]"),
    ("P>=0.99 [ G z<10 ]", "P>=0.99 [ G (z < 10) ]"),
    ("P>=0.98 [ y<4 U<=7 y=4 ]", "P>=0.98 [ (y < 4) U[0,7] (y = 4) ]"),
    ("P>=0.98 [ F<=7 y=4 ]", "P>=0.98 [ F[0,7] (y = 4) ]"),
    ("P>=0.98 [ G<=7 y=4 ]", "P>=0.98 [ G[0,7] (y = 4) ]"),
    ("P>=0.98 [ F[10,20] y=4 ]", "P>=0.98 [ F[10,20] (y = 4) ]"),
    ("P=? [ F[10,10] y=6 ]", "P=? [ F[10,10] (y = 6) ]"),
    ("P=? [ F=10 y=6 ]", "P=? [ F[10,10] (y = 6) ]"),
    ('P>0.99 [ F ( "request" & (X "ack") ) ]', 'P>0.99 [ F ("request" & (X "ack")) ]'),
    ('P>=1 [ G F "send" ]', 'P>=1 [ G (F "send") ]'),
    ('P=? [ F G ("error" & !"repair") ]', 'P=? [ F (G ("error" & (!"repair"))) ]'),
    ('P=? [ (F "error1") & (F "error2") ]', 'P=? [ (F "error1") & (F "error2") ]'),
    ('P=? [ F X X X "a" ]', 'P=? [ F (X (X (X "a"))) ]'),
    ('P=? [ "a" U X X X "error" ]', 'P=? [ "a" U (X (X (X "error"))) ]'),
    ("S<0.05 [ queue_size / max_size > 0.75 ]", "S<0.05 [ queue_size / max_size > 0.75 ]"),
    ("R<=9.5 [ F z=2 ]", "R{reward}<=9.5 [ F (z = 2) ]"),
    ("R=? [ C ]", "R{reward}=? [ C ]"),
    ("R<4.4 [ I=100 ]", "R{reward}<4.4 [ I=100 ]"),
    ("R<=0.7 [ S ]", "R{reward}<=0.7 [ S ]"),
    ('R{"num_failures"}=? [ C<=10 ]', 'R{"num_failures"}=? [ C<=10 ]'),
    ('R{"time"}=? [ F step=final ]', 'R{"time"}=? [ F (step = final) ]'),
    ('Pmin=? [ F "goal" ]', 'Pmin=? [ F "goal" ]'),
    ("Pmax=? [ remain U target ]", "Pmax=? [ remain U target ]"),
    ("Rmin=? [ F target ]", "R{reward}min=? [ F target ]"),
    ("Rmax=? [ F target ]", "R{reward}max=? [ F target ]"),
    ('"safe": P<0.01 [ F temperature > t_max ];', '"safe": P<0.01 [ F (temperature > t_max) ]'),
]

REFUSED = [
    # text, and why
    ("Pmax=? [ F<=T messages_lost > 10 ]", "constants and expressions are not known here: write the number"),
    ("P>=0.98 [ G<=(2*k+1) y=4 ]", "constants and expressions are not known here: write the number"),
    ("P>=0.98 [ F>=10 y=4 ]", r"cannot be bounded by >=.*write <=k .* or \[a,b\]"),
    ("P=? [ F>2 S>0.9[ num_servers >= 5 ] ]", "cannot be bounded by >|S cannot .* stand inside a formula"),
    ("P=? [ F S>0.9[ num_servers >= 5 ] ]", "S cannot name a signal, nor stand inside a formula"),
    ("R=? [ F (goal=1 & F goal=2) ]", r"until a state is reached, \[ F φ \] with no temporal operator in φ"),
    ("Rmin=? [ loc!=4 U loc=1 ]", r"until a state is reached, \[ F φ \] with no temporal operator in φ"),
    ("R=? [ C<=15.5 ]", "bound 15.5 is not a whole number"),
    ('R{"num_failures"}=? [ C<=10.0 ]', "bound 10.0 is not a whole number"),
    ("R{2}=? [ F step=final ]", "PRISM numbers the reward structures of a model; here name a signal"),
    (
        'multi(P<0.01 [ F "error1" ], P<0.02 [ F "error2" ])',
        "properties in one text are required together: separate them by ;",
    ),
    ('E [ F "goal" ]', "episodes cannot show what some path does: write P>=p"),
    ("A [ G x<=10 ]", "episodes cannot show what all paths do: write P>=p"),
    ("1 - P=? [ F[3600,7200] oper ]", "answers cannot be calculated with: ask for each by itself"),
    ('R{"oper"}=? [ C<=100 ] / 100', "answers cannot be calculated with: ask for each by itself"),
    ("P=? [ F fail_A ] / P=? [ F any_fail ]", "answers cannot be calculated with: ask for each by itself"),
    ('filter(max, P=? [ F "error" ], x=0)', "from their first state on: other states cannot be filtered"),
    ("P=? [ F a {b}{max} ]", "from their first state on: other states cannot be filtered"),
    ("const int k = 7; P<0.01 [ F x=k ]", "constants are not known here: write the number"),
    ('label "safe" = temp<=100; P>=0.99 [ F "safe" ]', "write the state formula where it is needed"),
]


@pytest.mark.parametrize(("text", "ours"), ACCEPTED, ids=[text for text, _ in ACCEPTED])
def test_read_with_the_meaning_of_prism(text, ours):
    assert parse(text) == parse(ours)
    assert parse(text).constraints or parse(text).questions


@pytest.mark.parametrize(("text", "reason"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refused_with_the_reason(text, reason):
    with pytest.raises(RequirementError, match=f"(?s){reason}"):
        parse(text)
