# Written from chapters/5-1-data.ipynb by chapters/_book/export.py. Edit the chapter.
"""The embedded corpus: English and German derived together by a synchronous grammar (5.1)."""

__all__ = [
    "BE",
    "CONTRACTIONS",
    "Clause",
    "DEFINITE",
    "EIN",
    "ENDINGS",
    "Example",
    "GENDERS",
    "HABEN",
    "INSEPARABLE",
    "PERSON",
    "Pair",
    "Phrase",
    "RELATIVE",
    "SEIN",
    "SPLITS",
    "Sampler",
    "Tree",
    "WERDEN",
    "Word",
    "adjectives_of",
    "adverbs_of",
    "agreement",
    "bracketed",
    "build",
    "capital",
    "capitalised",
    "content_tags",
    "detokenised",
    "draw_because",
    "draw_clause",
    "draw_person",
    "draw_phrase",
    "draw_question",
    "draw_statement",
    "draw_that",
    "end",
    "english_adverbs",
    "english_form",
    "english_objects",
    "english_phrase",
    "english_pp",
    "english_predicate",
    "english_slots",
    "english_verb",
    "example",
    "fill",
    "fixed",
    "frame",
    "fronted",
    "gender_of",
    "generate",
    "german_determiner",
    "german_noun",
    "german_objects",
    "german_participle",
    "german_phrase",
    "german_pp",
    "german_predicate",
    "german_present",
    "german_slots",
    "german_verb",
    "leaves",
    "lexicon",
    "linked",
    "nouns_of",
    "possessive",
    "pronoun_for",
    "split_of",
    "subordinate",
    "template",
]

import functools
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path


@functools.cache
def lexicon(name: str) -> dict:
    """Return one file of `data/grammar/`, such as "nouns" (5.1)."""
    import transformer

    folder = Path(transformer.__file__).resolve().parents[1] / "data" / "grammar"
    path = folder / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"the embedded corpus needs {path}, which is not there")
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Word:
    """A leaf: its part of speech, its form, and the names of what it expresses."""

    tag: str
    form: str
    links: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Tree:
    """An inner node: a label over one or more trees and words."""

    label: str
    children: tuple


def leaves(tree: Tree | Word) -> Iterator[Word]:
    """Yield the words of a tree from left to right."""
    if isinstance(tree, Word):
        yield tree
    else:
        for child in tree.children:
            yield from leaves(child)


def bracketed(tree: Tree | Word) -> str:
    """Return a tree in brackets, in the style of the Penn Treebank."""
    if isinstance(tree, Word):
        return f"({tree.tag} {tree.form})"
    return f"({tree.label} {' '.join(bracketed(child) for child in tree.children)})"


@functools.cache
def template(rule: str, language: str) -> list:
    """Return a right-hand side of `rules.json` as nested lists of labels and slots."""
    text = lexicon("rules")[rule][language].replace("$FIELD", lexicon("rules")["$FIELD"])
    stack: list[list] = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            node = stack.pop()
            stack[-1].append(node)
        else:
            stack[-1].append(token)
    return stack[0][0]


def fill(pattern: list, slots: dict[str, list]) -> Tree | None:
    """Build the tree of a template: slots in place of their names, empty nodes left out."""
    children: list[Tree | Word] = []
    for part in pattern[1:]:
        if isinstance(part, str):
            children += slots.get(part, [])
        elif node := fill(part, slots):
            children.append(node)
    return Tree(pattern[0], tuple(children)) if children else None


@dataclass(frozen=True)
class Phrase:
    """A noun phrase of the derivation, in no language yet."""

    key: str
    noun: str
    kind: str = "noun"
    number: str = "sg"
    determiner: str = ""
    adjectives: tuple[str, ...] = ()
    antecedent: str = ""
    relative: "Clause | None" = None


@dataclass(frozen=True)
class Clause:
    """A clause of the derivation: a verb, who does what in it, and its features."""

    key: str
    verb: str
    roles: dict[str, Phrase]
    tense: str = "present"
    modal: str = ""
    negated: bool = False
    adverbs: tuple[str, ...] = ()
    predicate: tuple[str, ...] = ()
    place: Phrase | None = None
    gap: str = ""


def fixed(text: str, key: str, label: str = "ADVP") -> Tree:
    """Return a fixed phrase, written word/tag/number: equal numbers are translations."""
    words = (token.split("/") for token in text.split())
    return Tree(label, tuple(Word(t, w, frozenset({f"{key}.{n}"})) for w, t, n in words))


def english_phrase(phrase: Phrase, case: int = 0) -> Tree:
    """Return an English noun phrase; case 0 is the subject's form, 1 every other."""
    key = frozenset({phrase.key})
    if phrase.kind == "pronoun":
        form = lexicon("closed")["pronouns"][phrase.noun]["en"][case]
        return Tree("NP", (Word("PRP", form, key),))
    if phrase.kind == "name":
        return Tree("NP", (Word("NNP", phrase.noun, key),))
    noun = lexicon("nouns")[phrase.noun]["en"]
    plural = phrase.number == "pl"
    form = noun.get("pl", noun["sg"] + "s") if plural else noun["sg"]
    adjectives = lexicon("adjectives")
    words = [
        Word("JJ", adjectives[a]["en"]["base"], frozenset({f"{phrase.key}.{a}"}))
        for a in phrase.adjectives
    ] + [Word("NNS" if plural else "NN", form, key)]
    if spec := lexicon("closed")["determiners"][phrase.determiner]["en"]:
        word, tag = spec.split("/")
        if word == "a" and words[0].form[0] in "aeiou":
            word = "an"
        words.insert(0, Word(tag, word, frozenset({f"{phrase.key}.det"})))
    return Tree("NP", tuple(words))


def english_form(verb: dict, form: str) -> str:
    """Return a form of an English verb: base, s, past, participle or ing."""
    base = verb["base"]
    stem = base[:-1] if base.endswith("e") else base
    if form in verb:
        return verb[form]
    if form == "s":
        return base + ("es" if base.endswith(("s", "sh", "ch", "x")) else "s")
    if form == "ing":
        return stem + "ing"
    return verb.get("past", stem + "ed")


BE = {"1sg": "am", "3sg": "is", "past": "was"}


def english_verb(clause: Clause, agreement: str, inverted: bool) -> tuple[list, list]:
    """Return the finite word and the rest of an English verb, as (tag, form) pairs."""
    verb = lexicon("verbs")[clause.verb]["en"]
    third = agreement == "3sg"
    be = BE.get(agreement, "are")
    was = "was" if agreement in ("1sg", "3sg") else "were"
    base, participle = ("VB", verb["base"]), ("VBN", english_form(verb, "participle"))
    if clause.modal:
        return [("MD", clause.modal)], [base]
    if clause.verb == "be":
        simple = {"present": ("VBZ", be), "past": ("VBD", was)}
        if clause.tense in simple:
            return [simple[clause.tense]], []
    if clause.tense == "future":
        return [("MD", "will")], [base]
    if clause.tense == "perfect":
        return [("VBZ", "has" if third else "have")], [participle]
    if clause.tense == "progressive":
        return [("VBZ" if third else "VBP", be)], [("VBG", english_form(verb, "ing"))]
    if clause.negated or inverted:
        do = ("VBD", "did") if clause.tense == "past" else ("VBZ", "does" if third else "do")
        return [do], [base]
    if clause.tense == "past":
        return [("VBD", english_form(verb, "past"))], []
    return [("VBZ", english_form(verb, "s")) if third else ("VBP", verb["base"])], []


GENDERS = ["m", "f", "n", "pl"]
DEFINITE = {
    "nom": ["der", "die", "das", "die"],
    "acc": ["den", "die", "das", "die"],
    "dat": ["dem", "der", "dem", "den"],
}
RELATIVE = DEFINITE | {"dat": ["dem", "der", "dem", "denen"]}
ENDINGS = {
    "strong": {
        "nom": ["er", "e", "es", "e"],
        "acc": ["en", "e", "es", "e"],
        "dat": ["em", "er", "em", "en"],
    },
    "mixed": {
        "nom": ["er", "e", "es", "en"],
        "acc": ["en", "e", "es", "en"],
        "dat": ["en", "en", "en", "en"],
    },
    "weak": {
        "nom": ["e", "e", "e", "en"],
        "acc": ["en", "e", "e", "en"],
        "dat": ["en", "en", "en", "en"],
    },
}
EIN = {"nom": ["", "e", "", "e"], "acc": ["en", "e", "", "e"], "dat": ["em", "er", "em", "en"]}
CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "in das": "ins",
                "an das": "ans", "von dem": "vom"}


def german_determiner(name: str, case: str, gender: int) -> tuple[str, str, str]:
    """Return tag, form and the adjective endings' type (strong, mixed, weak) after it."""
    spec = lexicon("closed")["determiners"][name]["de"]
    kind = spec["type"]
    if kind == "definite":
        return "ART", DEFINITE[case][gender], "weak"
    if kind == "mixed":
        return spec["tag"], spec["stem"] + EIN[case][gender], "mixed"
    if "stem" in spec:
        return spec["tag"], spec["stem"] + ENDINGS["strong"][case][gender], kind
    return spec.get("tag", ""), spec.get("word", ""), kind


def german_noun(concept: str, case: str, number: str) -> str:
    """Return a German noun's form: plural, weak masculine, dative plural in -n."""
    noun = lexicon("nouns")[concept]["de"]
    if number == "sg":
        return noun["sg"] if case == "nom" else noun.get("oblique", noun["sg"])
    plural = noun["pl"]
    return plural if case != "dat" or plural[-1] in "ns" else plural + "n"


def gender_of(phrase: Phrase) -> int:
    """Return the column of the ending tables for a noun phrase: m, f, n or plural."""
    if phrase.number == "pl":
        return 3
    return GENDERS.index(lexicon("nouns")[phrase.antecedent or phrase.noun]["de"]["gender"])


def german_phrase(phrase: Phrase, case: str, negation: str = "") -> Tree:
    """Return a German noun phrase in a case; with a negation's key, "kein" is its article."""
    key = frozenset({phrase.key})
    if phrase.kind == "pronoun":
        forms = lexicon("closed")["pronouns"][phrase.noun]["de"]
        if phrase.noun == "it":
            person = ["he", "she", "it"][gender_of(phrase)]
            forms = lexicon("closed")["pronouns"][person]["de"]
        return Tree("NP", (Word("PPER", forms[["nom", "acc", "dat"].index(case)], key),))
    if phrase.kind == "name":
        return Tree("NP", (Word("NE", phrase.noun, key),))
    gender = gender_of(phrase)
    tag, form, kind = german_determiner("no" if negation else phrase.determiner, case, gender)
    links = frozenset({f"{phrase.key}.det", negation} - {""})
    words = [Word(tag, form, links)] if form else []
    for name in phrase.adjectives:
        adjective = lexicon("adjectives")[name]["de"]
        stem = adjective.get("stem", adjective["base"]).removesuffix("e")
        full = stem + ENDINGS[kind][case][gender]
        words.append(Word("ADJA", full, frozenset({f"{phrase.key}.{name}"})))
    words.append(Word("NN", german_noun(phrase.noun, case, phrase.number), key))
    return Tree("NP", tuple(words))


SEIN = {"ich": "bin", "du": "bist", "er": "ist", "wir": "sind"}
HABEN = {"ich": "habe", "du": "hast", "er": "hat", "wir": "haben"}
WERDEN = {"ich": "werde", "du": "wirst", "er": "wird", "wir": "werden"}
PERSON = {"1sg": "ich", "2sg": "du", "3sg": "er", "1pl": "wir", "3pl": "wir"}
INSEPARABLE = ("be", "emp", "ent", "er", "ge", "ver", "zer")


def german_present(verb: dict, person: str) -> str:
    """Return the present form for ich, du, er or wir, without a separable prefix."""
    if person in verb:
        return verb[person]
    base = verb["base"]
    stem = base.removesuffix("n").removesuffix("e") if base.endswith("en") else base[:-1]
    if person == "wir":
        return base
    if person == "ich":
        return stem + "e"
    e = "e" if stem.endswith(("t", "d", "fn", "chn")) else ""
    if person == "er":
        return stem + e + "t"
    return stem + e + ("t" if stem.endswith(("s", "ß", "z", "x")) else "st")


def german_participle(verb: dict) -> str:
    """Return the past participle; ge- stands after a separable prefix and is left out of some."""
    if "participle" in verb:
        return verb["participle"]
    base = verb["base"]
    plain = base.startswith(INSEPARABLE) or base.endswith("ieren")
    return verb.get("prefix", "") + ("" if plain else "ge") + german_present(verb, "er")


def german_verb(clause: Clause, agreement: str) -> tuple[str, list, list]:
    """Return the finite verb, what closes the bracket, and both as a verb-final clause ends.

    Each word is a pair (tag, form), the finite one its auxiliary's tag included.
    """
    verb = lexicon("verbs")[clause.verb]["de"]
    person, prefix = PERSON[agreement], verb.get("prefix", "")
    infinitive = ("VVINF", prefix + verb["base"])
    if clause.modal:
        modal = lexicon("closed")["modals"][clause.modal]["de"]
        finite, rest = ("VMFIN", german_present(modal, person)), [infinitive]
    elif clause.tense == "future":
        finite, rest = ("VAFIN", WERDEN[person]), [infinitive]
    elif clause.tense == "past" and "past" in verb:
        finite, rest = ("VAFIN", verb["past"][person]), []
    elif clause.tense in ("past", "perfect"):
        auxiliary = SEIN if verb.get("auxiliary") == "sein" else HABEN
        finite, rest = ("VAFIN", auxiliary[person]), [("VVPP", german_participle(verb))]
    else:
        form = german_present(verb, person)
        tag = "VAFIN" if clause.verb == "be" else "VVFIN"
        final = [(tag, prefix + form)]
        return (tag, form), [("PTKVZ", prefix)] if prefix else [], final
    return finite, rest, [*rest, finite]


def agreement(phrase: Phrase) -> str:
    """Return person and number of a subject, such as "3sg"."""
    if phrase.kind == "pronoun":
        return lexicon("closed")["pronouns"][phrase.noun]["agreement"] if phrase.number == "sg" else "3pl"
    return "3" + phrase.number


def frame(clause: Clause, language: str) -> list[tuple[str, str]]:
    """Return the verb's (role, marker) pairs; the first is the subject."""
    parts = lexicon("verbs")[clause.verb][language]["frame"].split()
    return [(role, marker) for role, _, marker in (part.partition(":") for part in parts)]


def linked(pairs: list, key: str) -> list[Word]:
    return [Word(tag, form, frozenset({key})) for tag, form in pairs]


def english_slots(clause: Clause, inverted: bool = False) -> dict[str, list]:
    """Return what each slot of an English right-hand side holds."""
    slots: dict[str, list] = {}
    (subject, _), *objects = frame(clause, "en")
    person = agreement(clause.roles[subject])
    slots["subject"] = [english_phrase(clause.roles[subject])]
    finite, rest = english_verb(clause, person, inverted)
    key = clause.key
    aux = f"{key}.aux" if clause.modal or clause.tense in ("future", "perfect") else key
    finite, rest = linked(finite, aux if rest else key), linked(rest, key)
    slots |= english_adverbs(clause)
    middle = slots.pop("often", []) + slots.pop("already", [])
    negation = [Word("RB", "not", frozenset({f"{key}.not"}))] if clause.negated else []
    is_aux = bool(rest) or clause.verb == "be"
    before, after = ([], middle) if is_aux else (middle, [])
    slots["finite"], slots["rest"] = finite, [*negation, *after, *rest]
    slots["group"] = [*before, *finite, *negation, *after, *rest]
    if clause.predicate:
        slots["oblique"] = [english_predicate(clause)]
    return slots | english_objects(clause, objects)


def english_adverbs(clause: Clause) -> dict[str, list]:
    slots: dict[str, list] = {}
    for name in clause.adverbs:
        entry = lexicon("adverbs")[name]
        slots.setdefault(entry["slot"], []).append(fixed(entry["en"], f"{clause.key}.{name}"))
    if clause.place:
        at = lexicon("nouns")[clause.place.noun]["en"].get("at", "in")
        slots["place"] = [english_pp(at, clause.place)]
    return slots


def english_pp(preposition: str, phrase: Phrase) -> Tree:
    head = Word("IN", preposition, frozenset({f"{phrase.key}.prep"}))
    return Tree("PP", (head, english_phrase(phrase, 1)))


def english_predicate(clause: Clause) -> Tree:
    names = clause.predicate
    word = lexicon("adjectives")[names[0]]["en"]["base"]
    degree = [Word("RB", names[1], frozenset({f"{clause.key}.degree"}))] if names[1:] else []
    return Tree("ADJP", (*degree, Word("JJ", word, frozenset({f"{clause.key}.{names[0]}"}))))


def english_objects(clause: Clause, objects: list) -> dict[str, list]:
    slots: dict[str, list] = {}
    particle = lexicon("verbs")[clause.verb]["en"].get("particle")
    plain = [role for role, marker in objects if not marker]
    for role, marker in objects:
        phrase = clause.roles.get(role)
        if phrase is None or role == clause.gap:
            continue
        if marker:
            slots.setdefault("oblique", []).append(english_pp(marker, phrase))
        else:
            name = "indirect" if len(plain) == 2 and role == plain[0] else "direct"
            slots[name] = [english_phrase(phrase, 1)]
    if particle:
        theme = clause.roles.get("theme")
        after = theme is not None and theme.kind == "pronoun"
        slots["particle_after" if after else "particle"] = [
            Tree("PRT", (Word("RP", particle, frozenset({clause.key})),))
        ]
    return slots


def german_pp(marker: str, phrase: Phrase) -> Tree:
    """Return a prepositional phrase of a marker such as "auf+acc", contracted where it must be."""
    preposition, case = marker.split("+")
    inner = german_phrase(phrase, case)
    words = inner.children
    key = frozenset({f"{phrase.key}.prep"})
    joined = CONTRACTIONS.get(f"{preposition} {words[0].form}") if words[0].tag == "ART" else None
    if joined:
        return Tree("PP", (Word("APPRART", joined, key | words[0].links), Tree("NP", words[1:])))
    return Tree("PP", (Word("APPR", preposition, key), inner))


def german_objects(clause: Clause, objects: list) -> tuple[dict[str, list], bool]:
    """Return the objects' slots, and whether "kein" has expressed the negation."""
    slots: dict[str, list] = {}
    negated = clause.negated
    for role, marker in objects:
        phrase = clause.roles.get(role)
        if phrase is None or role == clause.gap:
            continue
        if marker == "to":
            marker = lexicon("nouns")[phrase.noun]["de"]["to"]
        if "+" in marker:
            slots.setdefault("oblique", []).append(german_pp(marker, phrase))
        elif phrase.kind == "pronoun":
            slots[f"pronoun_{marker}"] = [german_phrase(phrase, marker)]
        else:
            indefinite = phrase.kind == "noun" and phrase.determiner in ("a", "")
            kein = f"{clause.key}.not" if negated and indefinite and marker == "acc" else ""
            negated = negated and not kein
            name = "dative" if marker == "dat" else "indefinite" if indefinite else "definite"
            slots[name] = [german_phrase(phrase, marker, kein)]
    return slots, negated


def german_slots(clause: Clause) -> dict[str, list]:
    """Return what each slot of a German right-hand side holds."""
    (subject, _), *objects = frame(clause, "de")
    key = clause.key
    slots, negated = german_objects(clause, objects)
    slots["subject"] = [german_phrase(clause.roles[subject], "nom")]
    if negated:
        slots["not"] = [Word("PTKNEG", "nicht", frozenset({f"{key}.not"}))]
    finite, rest, final = german_verb(clause, agreement(clause.roles[subject]))
    aux = f"{key}.aux" if clause.modal or clause.tense in ("future", "perfect") else key

    def words(pairs: list) -> list[Word]:
        return [
            Word(tag, form, frozenset({aux if (tag, form) == finite and rest and tag != "VVFIN" else key}))
            for tag, form in pairs
        ]

    slots |= {"finite": words([finite]), "rest": words(rest), "final": words(final)}
    for name in clause.adverbs:
        entry = lexicon("adverbs")[name]
        slots.setdefault(entry["slot"], []).append(fixed(entry["de"], f"{key}.{name}"))
    if clause.place:
        at = lexicon("nouns")[clause.place.noun]["de"].get("at", "in+dat")
        slots["place"] = [german_pp(at, clause.place)]
    if clause.predicate:
        slots["predicate"] = [german_predicate(clause)]
    return slots


def german_predicate(clause: Clause) -> Tree:
    names = clause.predicate
    word = lexicon("adjectives")[names[0]]["de"]["base"]
    degree = [Word("ADV", {"very": "sehr", "too": "zu"}[names[1]], frozenset({f"{clause.key}.degree"}))] if names[1:] else []
    return Tree("ADJP", (*degree, Word("ADJD", word, frozenset({f"{clause.key}.{names[0]}"}))))


class Sampler:
    """Draws derivations; `random()` alone is asked, whose stream Python guarantees."""

    def __init__(self, seed: str):
        self.uniform = random.Random(seed).random
        self.count = 0

    def chance(self, share: float) -> bool:
        return self.uniform() < share

    def pick(self, options):
        options = list(options)
        return options[int(self.uniform() * len(options))]

    def key(self) -> str:
        self.count += 1
        return f"x{self.count}"


@functools.cache
def nouns_of(classes: str) -> tuple[str, ...]:
    """Return the nouns that are in any of the classes."""
    wanted = set(classes.split())
    return tuple(n for n, e in lexicon("nouns").items() if wanted & set(e["class"].split()))


@functools.cache
def adjectives_of(noun: str) -> tuple[str, ...]:
    """Return the adjectives that go with a noun."""
    classes = set(lexicon("nouns")[noun]["class"].split())
    return tuple(a for a, e in lexicon("adjectives").items() if classes & set(e["of"].split()))


@functools.cache
def adverbs_of(slot: str, tense: str) -> tuple[str, ...]:
    """Return the adverbs of a slot that ask for a tense."""
    return tuple(a for a, e in lexicon("adverbs").items() if (e["slot"], e["tense"]) == (slot, tense))


def draw_phrase(sampler: Sampler, classes: str, owner: str = "", plain: bool = False) -> Phrase:
    """Draw a noun phrase; `owner` is the possessive that refers to the subject."""
    noun = sampler.pick(nouns_of(classes))
    entry = lexicon("nouns")[noun]["class"].split()
    plural = "mass" not in entry and sampler.chance(0.2)
    if "mass" in entry:
        determiner = sampler.pick(["", "", "the"])
    elif plural:
        determiner = sampler.pick(["the", "the", "", "two", "three", "many"])
    else:
        determiner = sampler.pick(["the", "the", "a", "a", "this"])
    if owner and sampler.chance(0.7 if "kin" in entry else 0.15):
        determiner = owner
    elif "kin" in entry and sampler.chance(0.7):
        determiner = sampler.pick(["my", "our", "your"])
    adjectives = ()
    if not plain and adjectives_of(noun) and sampler.chance(0.35):
        adjectives = (sampler.pick(adjectives_of(noun)),)
    return Phrase(sampler.key(), noun, "noun", "pl" if plural else "sg", determiner, adjectives)


def draw_person(sampler: Sampler) -> Phrase:
    """Draw somebody who acts: a name, a pronoun or a noun phrase."""
    draw = sampler.uniform()
    if draw < 0.25:
        return Phrase(sampler.key(), sampler.pick(lexicon("closed")["names"]), "name")
    if draw < 0.45:
        return Phrase(sampler.key(), sampler.pick(["I", "you", "he", "she", "we", "they"]), "pronoun")
    return draw_phrase(sampler, "person")


def possessive(phrase: Phrase) -> str:
    """Return the possessive that refers to a person, "" if there is none."""
    closed = lexicon("closed")
    if phrase.kind == "noun" and phrase.number == "pl":
        return "their"
    pronoun = phrase.noun if phrase.kind == "pronoun" else closed["names"].get(phrase.noun)
    pronoun = pronoun or lexicon("nouns")[phrase.noun].get("pronoun", "")
    return closed["pronouns"][pronoun].get("possessive", "") if pronoun else ""


def draw_clause(sampler: Sampler, verb: str = "", subject: Phrase | None = None, tense: str = "") -> Clause:
    """Draw a clause: a verb, its roles, a tense that fits it, its adverbs."""
    verbs = lexicon("verbs")
    verb = verb or sampler.pick(v for v, e in verbs.items() if "takes" not in e)
    entry = verbs[verb]
    agent = subject or (draw_person(sampler) if entry["roles"]["agent"] == "person" else draw_phrase(sampler, entry["roles"]["agent"]))
    roles = {"agent": agent}
    for role, classes in entry["roles"].items():
        if role != "agent":
            owner = possessive(agent) if not (agent.kind == "noun" and agent.determiner in ("my", "your", "our")) else ""
            roles[role] = draw_phrase(sampler, classes, owner if classes == "person" else "")
            if "person" in classes and sampler.chance(0.25):
                roles[role] = Phrase(sampler.key(), sampler.pick(lexicon("closed")["names"]), "name")
            if roles[role].noun == agent.noun:
                return draw_clause(sampler, verb, subject, tense)
    adverbs: tuple[str, ...] = ()
    modal = ""
    if entry.get("state"):
        tense = tense or "present"
    elif not tense:
        tense = sampler.pick(["past", "past", "past", "perfect", "future", "progressive", "present", "modal"])
        if tense == "modal":
            tense, modal = "present", sampler.pick(lexicon("closed")["modals"])
        elif tense in ("perfect", "progressive", "present", "future") or sampler.chance(0.4):
            slots = {"perfect": ["already"], "present": ["time", "often"]}.get(tense, ["time"])
            adverbs = (sampler.pick(adverbs_of(sampler.pick(slots), tense)),)
    return Clause(sampler.key(), verb, roles, tense, modal, False, adverbs)


def capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def fronted(slots: dict[str, list]) -> dict[str, list]:
    """Move the time to the front."""
    comma = [Word(",", ",")]
    return {name: v for name, v in slots.items() if name != "time"} | {"front": slots["time"], "comma": comma}


Pair = tuple[Tree, Tree]


def end(mark: str) -> tuple[list, list]:
    key = frozenset({"end"})
    return [Word(".", mark, key)], [Word("$.", mark, key)]


def build(rule: str, english: dict, german: dict) -> Pair:
    """Apply one rule of the synchronous grammar: both its right-hand sides."""
    return fill(template(rule, "en"), english), fill(template(rule, "de"), german)


def draw_statement(sampler: Sampler) -> Pair:
    clause = draw_clause(sampler)
    if not clause.adverbs and sampler.chance(0.25):
        clause = replace(clause, negated=True)
    english, german = english_slots(clause), german_slots(clause)
    english["end"], german["end"] = end(".")
    if "time" in english and sampler.chance(0.5):
        return build("fronted", fronted(english), fronted(german))
    return build("statement", english, german)


def draw_question(sampler: Sampler) -> Pair:
    clause = draw_clause(sampler)
    english, german = english_slots(clause, inverted=True), german_slots(clause)
    english["end"], german["end"] = end("?")
    return build("yes-no", english, german)


def subordinate(conjunction: str, clause: Clause) -> Pair:
    english, german = english_slots(clause), german_slots(clause)
    entry = lexicon("closed")["conjunctions"][conjunction]
    english["conjunction"] = list(fixed(entry["en"], clause.key).children)
    german["conjunction"] = list(fixed(entry["de"], clause.key).children)
    return build("subordinate", english, german)


def pronoun_for(sampler: Sampler, phrase: Phrase) -> Phrase | None:
    """Return the pronoun that refers back to a noun phrase, or None if none does."""
    if phrase.kind == "pronoun":
        return replace(phrase, key=sampler.key())
    if phrase.kind == "name":
        return Phrase(sampler.key(), lexicon("closed")["names"][phrase.noun], "pronoun")
    if phrase.number == "pl":
        return Phrase(sampler.key(), "they", "pronoun")
    pronoun = lexicon("nouns")[phrase.noun].get("pronoun")
    return pronoun and Phrase(sampler.key(), pronoun, "pronoun", antecedent=phrase.noun)


def draw_because(sampler: Sampler) -> Pair:
    """Draw a main clause with its reason; "it" is er, sie or es after its antecedent's gender."""
    verbs = lexicon("verbs")
    verb = sampler.pick(v for v, e in verbs.items() if "because" in e)
    main = draw_clause(sampler, verb)
    role, adjective = sampler.pick(verbs[verb]["because"]).split()
    pronoun = pronoun_for(sampler, main.roles[role])
    if pronoun is None:
        return draw_because(sampler)
    tense = main.tense if main.tense in ("past", "present") else "present"
    reason = Clause(sampler.key(), "be", {"agent": pronoun}, tense, predicate=(adjective,))
    english, german = english_slots(main), german_slots(main)
    first, second = subordinate("because", reason)
    comma = Word("$,", ",")
    english["after"], german["after"] = [first], [comma, second]
    english["end"], german["end"] = end(".")
    return build("statement", english, german)


def draw_that(sampler: Sampler) -> Pair:
    """Draw what somebody thinks, knows or hopes."""
    verb = sampler.pick(v for v, e in lexicon("verbs").items() if e.get("takes") == "that")
    main = draw_clause(sampler, verb)
    inner = draw_clause(sampler)
    english, german = english_slots(main), german_slots(main)
    first, second = subordinate("that", inner)
    english["after"], german["after"] = [first], [Word("$,", ","), second]
    english["end"], german["end"] = end(".")
    return build("statement", english, german)


@dataclass(frozen=True)
class Example:
    """A sentence pair: surface, gold alignment over tokens, gold trees (5.1)."""

    english: str
    german: str
    alignment: tuple[tuple[int, int], ...]
    english_tree: str
    german_tree: str
    english_tokens: tuple[str, ...]
    german_tokens: tuple[str, ...]


def detokenised(tokens: tuple[str, ...]) -> str:
    """Return the sentence as it is written: no space before punctuation, "cannot" as one word."""
    text = " ".join(tokens).replace("can not ", "cannot ")
    for mark in ".,?":
        text = text.replace(f" {mark}", mark)
    return text


def example(pair: Pair) -> Example:
    """Turn a pair of trees into an example; words are aligned if they share a link."""
    pair = tuple(capitalised(tree) for tree in pair)
    english, german = (list(leaves(tree)) for tree in pair)
    alignment = tuple(
        (i, j) for i, e in enumerate(english) for j, g in enumerate(german) if e.links & g.links
    )
    tokens = [tuple(word.form for word in words) for words in (english, german)]
    text = [detokenised(forms) for forms in tokens]
    return Example(*text, alignment, *(bracketed(tree) for tree in pair), *tokens)


def capitalised(tree: Tree | Word) -> Tree | Word:
    """Return the tree with its first word capitalised."""
    if isinstance(tree, Word):
        return replace(tree, form=capital(tree.form))
    first, *others = tree.children
    return Tree(tree.label, (capitalised(first), *others))


SPLITS = {"train": range(0, 90), "dev": range(90, 95), "test": range(95, 100)}


@functools.cache
def content_tags() -> frozenset[str]:
    return frozenset({"NN", "NNS", "JJ", "VB", "VBP", "VBZ", "VBD", "VBN", "VBG"})


def split_of(pair: Pair) -> str:
    """Return the split of a pair: a hash of its German words alone decides (5.1)."""
    text = " ".join(sorted(word.form.lower() for word in leaves(pair[0])))
    bucket = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 100
    return next(name for name, buckets in SPLITS.items() if bucket in buckets)


def generate(split: str, count: int, seed: int = 1) -> list[Example]:
    """Return `count` distinct examples of a split; the first n are the same for any count (5.1)."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is none of {', '.join(SPLITS)}")
    sampler = Sampler(f"{split} {seed}")
    found: dict[str, Example] = {}
    german: set[str] = set()
    kinds = [draw_statement] * 4 + [draw_question, draw_because, draw_because, draw_that]
    while len(found) < count:
        pair = sampler.pick(kinds)(sampler)
        if split_of(pair) != split:
            continue
        new = example(pair)
        if new.english not in found and new.german not in german:
            found[new.english] = new
            german.add(new.german)
    return list(found.values())
