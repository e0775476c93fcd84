"""Make a small graph in tables: the staff of a company, who writes to whom, and the department to be learnt.

    python examples/tables/make.py               writes nodes.csv and edges.csv beside this file
    python examples/tables/make.py some/folder   or there

The people are invented. Mail goes mostly inside a department, age and office say a little about it, and the tables have
what tables have: gaps, words, a column that never changes, names that help nobody.
"""

import csv
import random
import sys
from pathlib import Path

PEOPLE, CONTACTS, SEED = 300, 450, 7
DEPARTMENTS = ["Engineering", "Finance", "Research & Development", "Sales", "Support"]
OFFICES = ["Berlin", "Lyon", "Oslo", "Porto", "São Paulo"]
FIRST = [
    "Ada",
    "Ben",
    "Chloé",
    "Dag",
    "Eva",
    "Finn",
    "Gül",
    "Hugo",
    "Ines",
    "Jan",
    "Kaja",
    "Leo",
    "Mia",
    "Nils",
    "Olga",
]
LAST = ["Adams", "Berg", "Costa", "Dubois", "Ek", "Faria", "Groß", "Holm", "Ito", "Jansen", "Keller", "Lopes", "Meyer"]
LAST += ["Novak", "Olsen", "Petit", "Quist", "Rossi", "Silva", "Tran"]

Row = dict[str, object]


def make_people(chance: random.Random) -> list[Row]:
    """Return a row per person, with gaps here and there."""
    names = [(first, last) for first in FIRST for last in LAST]
    chance.shuffle(names)
    people: list[Row] = []
    for number, (first, last) in enumerate(sorted(names[:PEOPLE])):
        department = chance.choice(DEPARTMENTS)
        level = DEPARTMENTS.index(department)
        age = round(chance.gauss(34 + 3 * level, 8))
        usual = chance.random() < 0.4
        people.append(
            {
                "id": f"{first}.{last}".lower(),
                "name": f"{last}, {first}",
                "company": "Example Ltd",
                "remote": chance.random() < 0.2 + 0.15 * (department == "Support"),
                "age": "" if chance.random() < 0.06 else max(19, min(67, age)),
                "years": round(abs(chance.gauss(4, 4)), 1),
                "office": "" if chance.random() < 0.05 else OFFICES[level] if usual else chance.choice(OFFICES),
                "split": ("train", "train", "train", "val", "test", "")[number % 6],
                "label": "" if chance.random() < 0.04 else department,
                "department": department,
            }
        )
    return people


def make_mail(people: list[Row], chance: random.Random) -> list[Row]:
    """Return a row per direction of a contact: who writes to whom, and how many mails a week."""
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < CONTACTS:
        first, second = chance.randrange(len(people)), chance.randrange(len(people))
        same = people[first]["department"] == people[second]["department"]
        if first < second and chance.random() < (1.0 if same else 0.08):
            pairs.add((first, second))
    return [
        {
            "source": people[source]["id"],
            "target": people[target]["id"],
            "weight": round(0.5 + chance.expovariate(0.3), 1),
        }
        for first, second in sorted(pairs)
        for source, target in ((first, second), (second, first))
    ]


def write(path: Path, rows: list[Row]) -> None:
    """Write rows of equal keys, but not the department itself, which the label may hide."""
    columns = [name for name in rows[0] if name != "department"]
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(folder: Path) -> None:
    """Write both tables into an existing folder."""
    chance = random.Random(SEED)
    people = make_people(chance)
    write(folder / "nodes.csv", people)
    write(folder / "edges.csv", make_mail(people, chance))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
